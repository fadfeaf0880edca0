"""What one piece of office work consists of, whatever its kind."""

from dataclasses import dataclass
from typing import Any

from office.world import Office


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a good clerk."""

    tool: str
    """Name as the model writes it: `sheets_lookup`."""
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The work is done when a new text file holds exactly this value."""

    path: str
    value: str


@dataclass(frozen=True, slots=True)
class Cell:
    """The work is done when this cell, and no other, has changed to this value."""

    path: str
    row: str
    column: str
    value: str


@dataclass(frozen=True, slots=True)
class Row:
    """The work is done when exactly this row stands after the sheet's last one."""

    path: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """An office, an instruction, and what a good clerk does about it."""

    domain: str
    """`finance` or `operations`."""
    kind: str
    """What has to be done: `lookup`, `total`, ..."""
    instruction: str
    """What the agent reads."""
    office: Office
    """The files that it finds."""
    expected: Reply | Cell | Row
    """What the verifier looks for."""
    plan: tuple[Call, ...]
    """The shortest way there."""
