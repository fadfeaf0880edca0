"""What a turn says, as records."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A well-formed tool call; whether the tool exists is not known here."""

    name: str
    arguments: dict[str, Any]
    arguments_text: str
    """The arguments as the model wrote them."""


@dataclass(frozen=True, slots=True)
class ParseFault:
    """Something that was meant as a tool call and is not one."""

    problem: str
    """A sentence for the model."""
    text: str
    """The text in question."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The parts of a turn's text."""

    content: str
    """What is said outside of reasoning and tool calls, without surrounding blank space."""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    faults: list[ParseFault] = field(default_factory=list)
