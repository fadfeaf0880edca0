"""The formats in which models write tool calls.

A malformed call is never dropped and never repaired by guessing: it becomes a `ParseFault` that says what is wrong.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from seatrial_rollout.tito.parsed import ParsedCall, ParsedTurn, ParseFault
from seatrial_rollout.tito.template import ToolSchema

type CallParser = Callable[[str, Sequence[ToolSchema]], ParsedTurn]
"""Finds the tool calls in text that holds no reasoning and no stop token."""


class _MalformedError(Exception):
    """A tool call does not keep to its format; the message is a sentence for the model."""


def _parse_hermes(text: str, tools: Sequence[ToolSchema]) -> ParsedTurn:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them."""
    return _parse_tagged(text, tools, _hermes_call)


def _hermes_call(body: str, tools: Sequence[ToolSchema]) -> tuple[ParsedCall, int]:
    del tools
    value, end = _read_json(body, _skip_space(body, 0))
    return _call_from_object(value, body[:end], "arguments"), end


def _parse_qwen3_coder(text: str, tools: Sequence[ToolSchema]) -> ParsedTurn:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""
    return _parse_tagged(text, tools, _xml_call)


def _xml_call(body: str, tools: Sequence[ToolSchema]) -> tuple[ParsedCall, int]:
    opening = re.compile(r"\s*<function=([^>\s]+)>").match(body)
    if opening is None:
        raise _MalformedError("a tool call has to start with <function=NAME>")
    end = body.find("</function>", opening.end())
    if end < 0:
        raise _MalformedError("<function=...> is never closed with </function>")
    pairs = re.findall(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", body[opening.end() : end], re.DOTALL)
    if len(pairs) != body.count("<parameter=", opening.end(), end):
        raise _MalformedError("a <parameter=NAME> is never closed with </parameter>")
    return _call_from_pairs(opening[1], pairs, tools), end + len("</function>")


def _parse_glm4(text: str, tools: Sequence[ToolSchema]) -> ParsedTurn:
    """GLM-4: the tool's name, a line break and JSON; from GLM-4.5 on tagged keys and values."""
    if "<tool_call>" in text or "</tool_call>" in text:
        return _parse_tagged(text, tools, _tagged_pairs_call)
    turn = _Collector()
    for part in text.split("<|assistant|>"):
        name, _, body = part.strip().partition("\n")
        if not re.fullmatch(r"[\w.-]+", name) or not body.lstrip().startswith("{"):
            turn.said.append(part.strip())
            continue
        try:
            turn.calls.append(_line_call(name, body))
        except _MalformedError as exc:
            turn.faults.append(ParseFault(str(exc), part.strip()))
    return turn.result()


def _line_call(name: str, body: str) -> ParsedCall:
    arguments, end = _read_json(body, _skip_space(body, 0))
    if body[end:].strip():
        raise _MalformedError(f"the arguments of {name} are followed by other text")
    if not isinstance(arguments, dict):
        raise _MalformedError(f"the arguments of {name} have to be a JSON object, not {_kind(arguments)}")
    return ParsedCall(name, arguments, body.strip())


def _tagged_pairs_call(body: str, tools: Sequence[ToolSchema]) -> tuple[ParsedCall, int]:
    end = body.find("</tool_call>")
    end = len(body) if end < 0 else end
    name, _, rest = body[:end].partition("<arg_key>")
    pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", "<arg_key>" + rest, re.DOTALL)
    if len(pairs) != body.count("<arg_key>", 0, end):
        raise _MalformedError("every <arg_key>KEY</arg_key> has to be followed by <arg_value>VALUE</arg_value>")
    if not re.fullmatch(r"[\w.-]+", name.strip()):
        raise _MalformedError("a tool call has to start with the tool's name")
    return _call_from_pairs(name.strip(), pairs, tools), end


def _parse_llama3_json(text: str, tools: Sequence[ToolSchema]) -> ParsedTurn:
    """`{"name": ..., "parameters": {...}}` as the whole turn, several separated by semicolons."""
    del tools
    body = text.strip()
    is_tagged = body.startswith("<|python_tag|>")
    body = body.removeprefix("<|python_tag|>").strip()
    # A JSON answer that names no tool is an answer.
    if not is_tagged and not re.match(r'\{\s*"(?:type"\s*:\s*"function"\s*,\s*")?name"\s*:', body):
        return ParsedTurn(body)
    calls: list[ParsedCall] = []
    at = 0
    while at < len(body):
        try:
            value, end = _read_json(body, at)
            calls.append(_call_from_object(value, body[at:end], "parameters"))
        except _MalformedError as exc:
            return ParsedTurn("", calls=calls, faults=[ParseFault(str(exc), body[at:])])
        at = _skip_space(body, end, also=";")
    return ParsedTurn("", calls=calls)


type _ReadCall = Callable[[str, Sequence[ToolSchema]], tuple[ParsedCall, int]]
"""Reads one call at the start of the text behind `<tool_call>`; returns it and where it ends."""


def _parse_tagged(text: str, tools: Sequence[ToolSchema], read_call: _ReadCall) -> ParsedTurn:
    """Calls between `<tool_call>` and `</tool_call>`; everything else is content."""
    turn = _Collector()
    while True:
        before, opened, body = text.partition("<tool_call>")
        if "</tool_call>" in before:
            turn.faults.append(ParseFault("</tool_call> without <tool_call> in front of the call", before.strip()))
        else:
            turn.said.append(before.strip())
        if not opened:
            return turn.result()
        try:
            call, text = _closed_call(body, tools, read_call)
            turn.calls.append(call)
        except _MalformedError as exc:
            bad, text = _skip_call(body)
            turn.faults.append(ParseFault(str(exc), bad))


def _closed_call(body: str, tools: Sequence[ToolSchema], read_call: _ReadCall) -> tuple[ParsedCall, str]:
    """The call at the start of `body` and the text behind its closing tag."""
    call, end = read_call(body, tools)
    rest = body[end:].lstrip()
    if not rest.startswith("</tool_call>"):
        raise _MalformedError("a tool call is not closed with </tool_call> right behind it")
    return call, rest.removeprefix("</tool_call>")


def _skip_call(body: str) -> tuple[str, str]:
    """A malformed call and the text behind it; an unclosed call ends where the next one starts."""
    end, next_call = body.find("</tool_call>"), body.find("<tool_call>")
    if next_call >= 0 and (end < 0 or next_call < end):
        return body[:next_call].strip(), body[next_call:]
    return (body[:end].strip(), body[end + len("</tool_call>") :]) if end >= 0 else (body.strip(), "")


class _Collector:
    """The parts of a turn while they are found."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.calls: list[ParsedCall] = []
        self.faults: list[ParseFault] = []

    def result(self) -> ParsedTurn:
        return ParsedTurn("\n".join(filter(None, self.said)), calls=self.calls, faults=self.faults)


def _call_from_object(value: Any, text: str, key: str) -> ParsedCall:
    """The call that a JSON object describes; `key` holds the arguments."""
    if not isinstance(value, dict):
        raise _MalformedError(f"a tool call has to be a JSON object, not {_kind(value)}")
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not name:
        raise _MalformedError('a tool call needs "name", the name of a tool')
    if not isinstance(arguments, dict):
        found = "nothing" if key not in value else _kind(arguments)
        raise _MalformedError(f'the call of {name} needs "{key}" with a JSON object, not {found}')
    return ParsedCall(name, arguments, _source_of(arguments, text, key))


def _call_from_pairs(name: str, pairs: list[tuple[str, str]], tools: Sequence[ToolSchema]) -> ParsedCall:
    """The call with arguments written as text, read as the tool's schema declares them."""
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    properties = functions.get(name, {}).get("parameters", {}).get("properties", {})
    arguments = {key.strip(): _typed(value, properties.get(key.strip(), {})) for key, value in pairs}
    return ParsedCall(name, arguments, json.dumps(arguments, ensure_ascii=False))


def _typed(value: str, schema: dict[str, Any]) -> Any:
    """A string stays one where the schema wants a string; otherwise it is JSON if it reads as JSON."""
    if schema.get("type") == "string":
        return value
    try:
        parsed, end = _read_json(value.strip(), 0)
    except _MalformedError:
        return value
    return parsed if end == len(value.strip()) else value


def _read_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at a position and where it ends; only values that can be sent on as JSON in UTF-8."""
    try:
        value, end = _DECODER.raw_decode(text, at)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as exc:
        raise _MalformedError(f"invalid JSON: {exc.msg} at character {exc.pos - at}") from exc
    except UnicodeEncodeError as exc:
        raise _MalformedError("invalid JSON: half of a \\u surrogate pair") from exc
    except (ValueError, RecursionError) as exc:
        raise _MalformedError(f"invalid JSON: {exc}") from exc
    return value, end


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _source_of(arguments: dict[str, Any], text: str, key: str) -> str:
    """The piece of `text` that holds the arguments, as written."""
    for match in re.finditer(rf'"{key}"\s*:\s*', text):
        try:
            value, end = _read_json(text, match.end())
        except _MalformedError:
            continue
        if value == arguments:
            return text[match.end() : end]
    return json.dumps(arguments, ensure_ascii=False)


def _skip_space(text: str, at: int, also: str = "") -> int:
    while at < len(text) and (text[at].isspace() or text[at] in also):
        at += 1
    return at


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


PARSERS: dict[str, CallParser] = {
    "hermes": _parse_hermes,
    "llama3_json": _parse_llama3_json,
    "glm4": _parse_glm4,
    "qwen3_coder": _parse_qwen3_coder,
}
"""The known formats by the name that `model.toolCallFormat` gives them."""
