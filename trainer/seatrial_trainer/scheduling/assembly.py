"""What happens to a group when one of its trials ends: a pure state machine.

Infrastructure outcomes never enter a group's statistics. Such a trial is retried under a new id in a fresh sandbox;
when its attempts are spent its place stays empty. A group is finished when every place is settled and enough trials
are valid; while too few are, it is refilled to its full size; when the refills are spent, or no trial of the task can
be graded at all, it is lost.
"""

from dataclasses import dataclass, replace
from typing import Self

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.groups import GroupResult

_TASK_FAULTS = frozenset({Outcome.VERIFIER_FAILED, Outcome.HARNESS_FAILED})


@dataclass(frozen=True, slots=True)
class AssemblyRules:
    """Bounds of a group's assembly."""

    group_size: int
    """Trials per group."""
    min_valid: int
    """Fewest valid trials of a finished group."""
    max_attempts: int = 3
    """Attempts in one place before it stays empty."""
    max_refills: int = 2
    """Rounds of new trials for a group with too few valid ones."""
    retry_seconds: float = 5.0
    """Pause before the second attempt; it doubles with every further failure of the group's worst place."""
    max_retry_seconds: float = 120.0
    """Longest pause before an attempt."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Other trials of the group are still running."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again in the same place."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Refill:
    """Start trials in new places."""

    first_slot: int
    num_trials: int
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The group is finished."""

    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class Lose:
    """The group will never be finished."""

    result: GroupResult


Action = Wait | Retry | Refill | Finish | Lose


@dataclass(frozen=True, slots=True)
class GroupAssembly:
    """One group from its admission until it is finished or lost."""

    rules: AssemblyRules
    num_running: int
    """Places whose trial has not ended, also while it waits for its turn."""
    num_slots: int
    """Places opened so far."""
    num_refills: int = 0
    valid: tuple[tuple[int, Trajectory], ...] = ()
    """Valid trials with their places."""
    failures: tuple[Outcome, ...] = ()
    """Outcomes of the trials that infrastructure failed, retried ones included."""

    @classmethod
    def start(cls, rules: AssemblyRules) -> Self:
        """A group none of whose trials has ended."""
        return cls(rules, num_running=rules.group_size, num_slots=rules.group_size)

    def settle(self, slot: int, attempt: int, trajectory: Trajectory) -> tuple["GroupAssembly", Action]:
        """One trial ended.

        Args:
            slot: Its place in the group.
            attempt: Which attempt in that place it was, from 1.
            trajectory: What it left.
        """
        if trajectory.outcome is Outcome.CANCELLED:
            return self, Wait()
        if not trajectory.outcome.is_infrastructure:
            valid = (*self.valid, (slot, trajectory))
            return _decide(replace(self, num_running=self.num_running - 1, valid=valid))
        failed = replace(self, failures=(*self.failures, trajectory.outcome))
        if attempt < self.rules.max_attempts:
            return failed, Retry(_delay(failed, attempt))
        return _decide(replace(failed, num_running=self.num_running - 1))


def _decide(group: GroupAssembly) -> tuple[GroupAssembly, Action]:
    rules = group.rules
    if group.num_running:
        return group, Wait()
    if len(group.valid) >= rules.min_valid:
        return group, Finish(tuple(trajectory for _, trajectory in sorted(group.valid, key=lambda item: item[0])))
    if not group.valid and _TASK_FAULTS.issuperset(group.failures):
        return group, Lose(GroupResult.TASK_BROKEN)
    if group.num_refills == rules.max_refills:
        return group, Lose(GroupResult.REFILLS_SPENT)
    missing = rules.group_size - len(group.valid)
    refilled = replace(
        group, num_running=missing, num_slots=group.num_slots + missing, num_refills=group.num_refills + 1
    )
    return refilled, Refill(group.num_slots, missing, _delay(group, rules.max_attempts))


def _delay(group: GroupAssembly, attempt: int) -> float:
    exponent = group.num_refills * group.rules.max_attempts + attempt - 1
    return min(group.rules.max_retry_seconds, group.rules.retry_seconds * 2.0**exponent)
