"""Which packages and commands agents reach for, and which a world lacks: pure summaries over trajectories."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_trainer.reporting.failures import tool_calls

_IMPORTED = re.compile(r"(?:^|[\n;\"'`]|\\n)\s*(?:import\s+(\w+)|from\s+(\w+)[\w.]*\s+import\b)")
_MISSING = (
    re.compile(r"No module named '([\w-]+)"),
    re.compile(r"Cannot find (?:module|package) '([^'./][^'/]*)"),
    re.compile(r"there is no package called .(\w[\w.]*)"),
    re.compile(r"(?:^|[\s:])([\w.+-]+): (?:command )?not found\b"),
)


@dataclass(frozen=True, slots=True)
class PackageSummary:
    """One package or command."""

    name: str
    used: int
    """Trials whose agent imported it."""
    missing: int
    """Trials that were told that it is not there."""


def summarize_packages(trajectories: Iterable[Trajectory]) -> list[PackageSummary]:
    """Every package that was imported or found missing, what most trials missed first."""
    used, lacked = Counter[str](), Counter[str]()
    for trajectory in trajectories:
        calls = list(tool_calls([trajectory]))
        used.update({name for call in calls for name in imported(call)})
        lacked.update({name for call in calls for name in missing(call)})
    summaries = [PackageSummary(name, used[name], lacked[name]) for name in used | lacked]
    return sorted(summaries, key=lambda one: (-one.missing, -one.used, one.name))


def imported(call: ToolCall) -> Iterator[str]:
    """Python packages that a call's arguments import, as `import x` or `from x.y import z`."""
    for match in _IMPORTED.finditer(call.arguments):
        yield match[1] or match[2]


def missing(call: ToolCall) -> Iterator[str]:
    """Packages and commands that a call's answer says are not there, in the words of Python, Node, R and shells."""
    for pattern in _MISSING:
        yield from pattern.findall(call.result)
