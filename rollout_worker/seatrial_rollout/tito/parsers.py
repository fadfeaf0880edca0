"""What a turn's text says: reasoning, content, tool calls, and where a call is malformed."""

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.tito.call_formats import PARSERS, CallParser
from seatrial_rollout.tito.parsed import ParsedTurn, ParseFault
from seatrial_rollout.tito.template import ChatTemplate, ToolSchema


@dataclass(frozen=True, slots=True)
class TurnParser:
    """Reads turns in one model's format."""

    parse_calls: CallParser
    has_reasoning: bool
    """Whether the model's template knows `<think>`."""
    opens_reasoning: bool = False
    """Whether the generation prompt has opened the reasoning already."""
    call_format: str = ""
    """Name of the format of calls; empty if it is not known."""

    @classmethod
    def of(cls, template: ChatTemplate, tool_call_format: str = "Auto", *, with_tools: bool = True) -> "TurnParser":
        """The parser for a format's name; `Auto` tells it from the chat template.

        Args:
            template: The model's chat template.
            tool_call_format: `hermes`, `llama3_json`, `glm4`, `qwen3_coder` or `Auto`.
            with_tools: Whether there are tools to call; without any, `Auto` needs no known format.

        Raises:
            InvalidInputError: Unknown name, or `Auto` and a template that shows no known format.
        """
        name = _detect(template.source) if tool_call_format == "Auto" else tool_call_format
        if not name and with_tools:
            raise InvalidInputError(
                "model.toolCallFormat: Auto finds no known format of tool calls in the chat template; "
                f"set one of {', '.join(PARSERS)}"
            )
        if name and name not in PARSERS:
            raise InvalidInputError(f"model.toolCallFormat: {name} is none of {', '.join(PARSERS)}, Auto")
        parse_calls = PARSERS[name] if name else _parse_no_calls
        return cls(parse_calls, "</think>" in template.source, template.opens_reasoning, name)

    def parse(self, text: str, tools: Sequence[ToolSchema] = ()) -> ParsedTurn:
        """The parts of `text`, a turn without its stop token."""
        reasoning, rest = self._split_reasoning(text)
        if rest is None:
            return _unfinished_reasoning(reasoning)
        turn = self.parse_calls(rest, tools)
        return ParsedTurn(turn.content, reasoning, turn.calls, turn.faults)

    def _split_reasoning(self, text: str) -> tuple[str, str | None]:
        """Reasoning and what follows it; None where the reasoning never ends."""
        is_open = self.opens_reasoning or text.lstrip().startswith("<think>")
        if not (self.has_reasoning and is_open):
            return "", text
        inner, closed, rest = text.partition("</think>")
        return inner.strip().removeprefix("<think>").strip(), rest if closed else None


def _unfinished_reasoning(reasoning: str) -> ParsedTurn:
    if "<tool_call>" not in reasoning:
        return ParsedTurn("", reasoning)
    problem = "a tool call inside <think> is not made; close the reasoning with </think> first"
    return ParsedTurn("", reasoning, faults=[ParseFault(problem, reasoning)])


def _parse_no_calls(text: str, tools: Sequence[ToolSchema]) -> ParsedTurn:
    del tools
    return ParsedTurn(text.strip())


def _detect(source: str) -> str:
    """Name of the format that a chat template writes tool calls in; empty if it shows none that is known."""
    marks = {
        "qwen3_coder": "<function=",
        "glm4": "<|observation|>",
        "llama3_json": "<|python_tag|>",
        "hermes": "<tool_call>",
    }
    for name, mark in marks.items():
        if mark in source:
            return name
    return "llama3_json" if "<|eot_id|>" in source and '"parameters": ' in source else ""
