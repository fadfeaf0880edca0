"""What a piece of work consists of, and where what people asked for stands."""

from dataclasses import dataclass, field
from typing import Any

from firm.facts import Firm
from firm.requests import letters, lines

type Call = tuple[str, dict[str, Any]]
"""A tool by its full name, and its arguments."""
type Fact = dict[str, Any]
"""What the verifier looks for; `verify.py` knows the kinds."""


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work."""

    instruction: str
    facts: list[Fact]
    """What is true afterwards, and was not before."""
    plan: list[Call]
    touches: list[str]
    """Files that may change."""
    name: str = ""
    domain: str = ""
    servers: list[str] = field(default_factory=list)
    """Those that the plan needs."""


def letter_id(firm: Firm, key: str) -> str:
    """Id of a mail."""
    return f"Inbox/{[letter.key for letter in letters(firm)].index(key) + 1}"


def post_id(firm: Firm, key: str) -> tuple[str, int]:
    """Channel and number of what somebody wrote."""
    said = lines(firm)
    line = next(line for line in said if line.key == key)
    return line.channel, [other for other in said if other.channel == line.channel].index(line) + 1
