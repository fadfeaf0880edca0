"""Finished groups, and the batch that a step trains on."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from seatrial_api.trajectory import Trajectory
from seatrial_trainer.evaluation.summary import passed
from seatrial_trainer.scheduling.staleness import Credit


class GroupResult(StrEnum):
    """How a group left the scheduler."""

    TRAINED = "Trained"
    """A step took it."""
    REFILLS_SPENT = "RefillsSpent"
    """Infrastructure failed too many of its trials; its task is tried again."""
    TASK_BROKEN = "TaskBroken"
    """No trial of its task can be graded; the task is retired."""
    NOT_RESTORED = "NotRestored"
    """It was stored, but the bounds of the resumed run no longer allow to train it; its task is tried again."""


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group whose trials have all ended, with enough valid ones."""

    group_id: str
    task: str
    domain: str
    credit: Credit
    trajectories: tuple[Trajectory, ...]
    """Valid trials only, in the order of their places."""

    @classmethod
    def from_spool(cls, trajectories: Sequence[Trajectory], max_staleness: int) -> Self:
        """Read a stored group again.

        Args:
            trajectories: All of the group, as `on_group_finished` stored them.
            max_staleness: Bound of the resumed run.
        """
        first = trajectories[0]
        credit = Credit(first.start_version, first.start_version + max_staleness)
        return cls(first.group_id, first.task, first.domain, credit, tuple(trajectories))

    @property
    def pass_rate(self) -> float:
        """Share of the trials with full marks."""
        return sum(map(passed, self.trajectories)) / len(self.trajectories)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on."""

    step: int
    """The version that the step starts from."""
    groups: tuple[FinishedGroup, ...]
    """Earliest due first, those of one due step in an order that depends on their tasks alone."""
    wait_seconds: float
    """Time that the trainer waited for this batch."""
    hold_seconds: float
    """Part of it in which enough groups were finished and the step waited for those that were due."""

    @property
    def staleness(self) -> tuple[int, ...]:
        """Steps between admission and training, by group."""
        return tuple(self.step - group.credit.start_version for group in self.groups)
