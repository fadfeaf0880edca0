"""One trial as the scheduler sees it: an identity, a task and a version; no sandbox, no engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import TokenSequence, Trajectory


@dataclass(frozen=True, slots=True)
class TrialTicket:
    """Permission to run one trial; whoever holds it owes exactly one trajectory."""

    group_id: str
    """Group that the trial belongs to."""
    slot: int
    """Place in the group, from 0; a refill gets a new place."""
    task: str
    """Name of the task."""
    domain: str
    purpose: str
    """Name of the stage, or `validation`."""
    start_version: int
    """Weight version when the group was admitted."""
    attempt: int = 1
    """1 for the first try in this place; each further one runs in a fresh sandbox."""

    @property
    def trial_id(self) -> str:
        """Unique within the run, also among attempts."""
        return f"{self.group_id}-t{self.slot:02d}-a{self.attempt}"

    def retry(self) -> Self:
        """The next attempt in the same place."""
        return replace(self, attempt=self.attempt + 1)

    def trajectory(
        self,
        outcome: Outcome,
        *,
        harness: str,
        reward: float | None,
        sequences: Sequence[TokenSequence] = (),
        detail: str = "",
    ) -> Trajectory:
        """The trajectory that is owed for the ticket."""
        return Trajectory(
            trial_id=self.trial_id,
            group_id=self.group_id,
            task=self.task,
            domain=self.domain,
            purpose=self.purpose,
            harness=harness,
            start_version=self.start_version,
            outcome=outcome,
            detail=detail,
            reward=reward,
            sequences=list(sequences),
        )

    def without_result(self, outcome: Outcome, detail: str) -> Trajectory:
        """The trajectory of a trial that nobody could run to an end."""
        return self.trajectory(outcome, harness="", reward=None, detail=detail)


class TrialRunner(Protocol):
    """Turns a ticket into a trial: builds the request, picks host and engine, waits for the end."""

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """Run the trial; its own failures are outcomes, an exception is a bug and becomes `HarnessFailed`."""
        ...
