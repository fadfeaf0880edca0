"""The scheduler in numbers, for metrics and for the live view."""

from dataclasses import dataclass

from seatrial_api.outcome import Outcome
from seatrial_trainer.scheduling.concurrency import Ceilings
from seatrial_trainer.scheduling.groups import GroupResult


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """One look; totals count from the stage's start, earlier attempts included."""

    version: int
    """Weight version that the engines serve."""
    trials_in_flight: int
    trials_queued: int
    """Trials that wait for a place."""
    concurrency: int
    """Trials that may be in flight now."""
    ceilings: Ceilings
    groups_in_flight: int
    groups_finished: int
    """Groups that wait to be trained."""
    staleness: dict[int, int]
    """Trained groups by steps between admission and training."""
    staleness_hold_seconds: float
    """Time in which enough groups were finished and a step waited for those that were due."""
    buffer_wait_seconds: float
    """Time that the trainer waited for batches, holds included."""
    groups: dict[GroupResult, int]
    """Groups that have left, by result."""
    outcomes: dict[Outcome, int]
    """Trials that have ended, by outcome; validation included."""
