"""Staleness by pacing: the ledger that admits groups, says when a step may start, and never drops a group.

Units are groups. Version v is the number of steps done; the step at v turns it into v + 1. With B groups a batch
and a bound of S steps:

* Admission. Groups ever admitted, less those that were lost, number at most (v + S + 1) · B.
* Due step. A group admitted at v has to be trained in step v + S at the latest.
* Start. Step v may start once B groups are finished and, for every w ≥ v, at most (w - v) · B of the groups in
  flight are due at w or before. It trains the finished groups that are due earliest.

Why no group passes its bound: let N(w) be the admitted, untrained groups due at w or before. Before step v,
N(w) ≤ (w - v + 1) · B holds for all w ≥ v: for the newest due step by the admission rule, for the others because a step
trains B groups out of N(w) or all of its finished ones, of which the start rule leaves at most (w - v) · B. At w = v:
every group due now fits into the batch and none of them is in flight. Why nothing stalls: with nothing in flight the
start rule asks for B finished groups alone, and with fewer finished the admission rule has credit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Credit:
    """What a group holds from its admission until it is trained or lost."""

    start_version: int
    """Weight version at admission."""
    due: int
    """The last step that may train the group."""


@dataclass(frozen=True, slots=True)
class StalenessLedger:
    """The whole arithmetic of admission; every change is a new ledger, at a cost that depends on S alone."""

    batch_size: int
    """B: groups per step."""
    max_staleness: int
    """S: steps between a group's admission and its training; 0 is synchronous."""
    num_steps: int | None = None
    """No group is admitted that a later step than the last would have to train; none for an endless run."""
    version: int = 0
    """Version of the weights that the engines serve."""
    step: int = 0
    """The next step that takes a batch: `version`, or one more while a step trains."""
    num_finished: int = 0
    """Groups that are finished and not trained yet."""
    in_flight: Mapping[int, int] = field(default_factory=dict)
    """Groups in flight by due step."""

    @property
    def num_in_flight(self) -> int:
        """Groups admitted and not finished."""
        return sum(self.in_flight.values())

    @property
    def num_credits(self) -> int:
        """Groups that may be admitted now."""
        return self._num_credits_at(self.version)

    @property
    def num_credits_soon(self) -> int:
        """Groups that may be admitted once the engines serve the next version."""
        return self._num_credits_at(self.version + 1)

    def _num_credits_at(self, version: int) -> int:
        horizon = version + self.max_staleness + 1
        if self.num_steps is not None:
            horizon = min(horizon, self.num_steps)
        return (horizon - self.step) * self.batch_size - self.num_finished - self.num_in_flight

    @property
    def held_by(self) -> int | None:
        """The due step whose groups in flight forbid the next step to start; none if none does."""
        num_due = 0
        for due in sorted(self.in_flight):
            num_due += self.in_flight[due]
            if num_due > (due - self.step) * self.batch_size:
                return due
        return None

    @property
    def is_ready(self) -> bool:
        """Whether the next step may take its batch."""
        return self.step == self.version and self.num_finished >= self.batch_size and self.held_by is None

    def admit(self) -> tuple[Self, Credit]:
        """Admit one group at the current version.

        Raises:
            ValueError: if there is no credit.
        """
        if self.num_credits <= 0:
            raise ValueError(f"no credit at version {self.version}: {self.num_in_flight} groups are in flight")
        due = self.version + self.max_staleness
        if self.num_steps is not None:
            due = min(due, self.num_steps - 1)
        return self._count(due, +1), Credit(self.version, due)

    def finish(self, credit: Credit) -> Self:
        """A group in flight is finished and waits for its step."""
        return replace(self._count(credit.due, -1), num_finished=self.num_finished + 1)

    def lose(self, credit: Credit) -> Self:
        """A group in flight will never be trained; its credit is free for another one."""
        return self._count(credit.due, -1)

    def restore_finished(self, credits_: list[Credit]) -> Self:
        """Take back finished groups after a resumption, before anything is admitted.

        Raises:
            ValueError: if they cannot all be trained within their bounds.
        """
        for num_due, due in enumerate(sorted(credit.due for credit in credits_), start=1):
            if num_due > (due - self.step + 1) * self.batch_size:
                raise ValueError(f"{num_due} groups are due by step {due}, and step {self.step} is next")
        return replace(self, num_finished=self.num_finished + len(credits_))

    def take(self) -> Self:
        """The next step takes its batch: the finished groups that are due earliest.

        Raises:
            ValueError: if the step may not start.
        """
        if not self.is_ready:
            raise ValueError(f"step {self.step} may not start at version {self.version}")
        return replace(self, step=self.step + 1, num_finished=self.num_finished - self.batch_size)

    def advance(self, version: int) -> Self:
        """The engines serve the weights that the last step made.

        Raises:
            ValueError: if that step was not taken.
        """
        if version != self.version + 1 or version != self.step:
            raise ValueError(f"version {version} cannot follow {self.version} after {self.step} steps")
        return replace(self, version=version)

    def _count(self, due: int, change: int) -> Self:
        count = self.in_flight.get(due, 0) + change
        if count < 0:
            raise ValueError(f"no group due at step {due} is in flight")
        others = {other: number for other, number in self.in_flight.items() if other != due}
        return replace(self, in_flight=others | {due: count} if count else others)
