"""What a trial did to its sandbox, and what of it a snapshot does not hold. Pure: no clock, no sandbox.

    call 1 · 2 · 3 · 4 · 5 ▮ 6 · 7 · 8      8 is under way when the sandbox dies
                           │ └───┴ the tail: made again, each answer compared; then 8 is made, for the agent
                           └ snapshot: restored

What never reached the sandbox is in no journal: calls of unknown tools, or with arguments that no tool takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, override

from seatrial_rollout.harness.replay.observation import Observation

_SHOWN_ARGUMENTS_CHARS = 200


@dataclass(frozen=True, slots=True)
class JournaledCall:
    """A call that was answered."""

    number: int
    """Which of the trial's calls it was, from 1; those that never reached a server do not count."""
    server: str
    tool: str
    arguments: Mapping[str, Any]
    observation: Observation

    @override
    def __str__(self) -> str:
        shown = str(dict(self.arguments))
        if len(shown) > _SHOWN_ARGUMENTS_CHARS:
            shown = f"{shown[:_SHOWN_ARGUMENTS_CHARS]}..."
        return f"call {self.number}, {self.tool}({shown}) of server {self.server}"

    def difference(self, again: Observation) -> str:
        """What is to be said of another answer to the same call; empty if it is the same answer."""
        if again.sha256 == self.observation.sha256:
            return ""
        if again.excerpt == self.observation.excerpt:
            return f"its answer, which begins alike, had hash {self.observation.sha256}, and now has {again.sha256}"
        return f"it was answered {self.observation.excerpt!r}, and now {again.excerpt!r}"


@dataclass(slots=True)
class Journal:
    """The calls of one trial, in the order in which they changed its world."""

    snapshot_every_calls: int
    """Calls between two snapshots; 0 for none."""
    tail: list[JournaledCall] = field(default_factory=list, init=False)
    """What was called since the last snapshot: what has to be made again on top of it."""
    num_calls: int = field(default=0, init=False)
    """Calls in all."""
    _due_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._due_at = self.snapshot_every_calls

    @property
    def is_snapshot_due(self) -> bool:
        """Whether enough was called since the last snapshot, or since the last one that failed."""
        return self.snapshot_every_calls > 0 and self._due_at <= self.num_calls

    def record(self, server: str, tool: str, arguments: Mapping[str, Any], observation: Observation) -> None:
        """Take in a call with its answer."""
        self.num_calls += 1
        self.tail.append(JournaledCall(self.num_calls, server, tool, arguments, observation))

    def saved(self) -> None:
        """A snapshot holds all that was called so far."""
        self.tail.clear()
        self.put_off()

    def put_off(self) -> None:
        """There was no snapshot, and the next call is too early for another try."""
        self._due_at = self.num_calls + self.snapshot_every_calls
