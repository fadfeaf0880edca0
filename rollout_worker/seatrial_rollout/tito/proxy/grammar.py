"""Demands as grammars: the text that a turn may be, with calls as the model's family writes them.

A grammar is a *structural tag*, JSON that vLLM hands to XGrammar: https://xgrammar.mlc.ai/docs/structural_tag.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.proxy.demands import Demand
from seatrial_rollout.tito.proxy.errors import InvalidRequestError
from seatrial_rollout.tito.template import ToolSchema

type _Format = dict[str, Any]


def structural_tag(demand: Demand, tools: Sequence[ToolSchema], parser: TurnParser) -> str:
    """The grammar of a turn that meets a demand, reasoning before it included.

    Args:
        demand: What the client demands.
        tools: What may be called.
        parser: Tells how the model writes calls and reasoning.

    Raises:
        InvalidRequestError: Nobody here knows the grammar of the family's calls.
    """
    forms = [] if demand.schema is None else [_json(demand.schema)]
    if callable_tools := [tool for tool in tools if not demand.calls or tool["function"]["name"] in demand.calls]:
        forms.append(_calls(demand, callable_tools, parser))
    answer = forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
    return json.dumps({"type": "structural_tag", "format": _after_reasoning(answer, parser)}, ensure_ascii=False)


def _calls(demand: Demand, tools: Sequence[ToolSchema], parser: TurnParser) -> _Format:
    known = _CALLS.get(parser.call_format)
    if known is None:
        what = f"{demand.param} cannot be enforced: there is no grammar of tool calls in the format"
        raise InvalidRequestError(f"{what} {parser.call_format or 'of this model'}", param=demand.param)
    call, separator = known
    tags = [call(tool["function"]["name"], tool["function"]["parameters"]) for tool in tools]
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": demand.is_single,
    }


def _after_reasoning(answer: _Format, parser: TurnParser) -> _Format:
    if not parser.has_reasoning:
        return answer
    opening = "" if parser.opens_reasoning else "<think>"
    thought = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": "</think>"}
    reasoning = {"type": "sequence", "elements": [thought, {"type": "regex", "pattern": r"\n{0,2}"}]}
    first = reasoning if parser.opens_reasoning else {"type": "optional", "content": reasoning}
    return {"type": "sequence", "elements": [first, answer]}


def _json(schema: Any, style: str = "json") -> _Format:
    return {"type": "json_schema", "json_schema": schema, "style": style}


def _tag(begin: str, content: _Format, end: str) -> _Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _hermes(name: str, schema: Any) -> _Format:
    begin = f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": '
    return _tag(begin, _json(schema), "}\n</tool_call>")


def _qwen3_coder(name: str, schema: Any) -> _Format:
    content = _json(schema, "qwen_xml")
    return _tag(f"<tool_call>\n<function={name}>\n", content, "\n</function>\n</tool_call>")


def _llama3_json(name: str, schema: Any) -> _Format:
    return _tag(f'{{"name": {json.dumps(name)}, "parameters": ', _json(schema), "}")


_CALLS: dict[str, tuple[Callable[[str, Any], _Format], str]] = {
    "hermes": (_hermes, "\n"),
    "qwen3_coder": (_qwen3_coder, "\n"),
    "llama3_json": (_llama3_json, "; "),
}
"""How one call is written, and what stands between two, by `model.toolCallFormat`."""
