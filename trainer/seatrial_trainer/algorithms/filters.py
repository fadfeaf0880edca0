"""What is left out of the loss, never out of a group's statistics."""

from collections.abc import Sequence
from enum import StrEnum

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import FilterSpec
from seatrial_api.trajectory import Trajectory

_OVERLONG = frozenset({Outcome.CONTEXT_EXCEEDED, Outcome.TURN_TOO_LONG, Outcome.STEPS_EXHAUSTED})


class LeftOut(StrEnum):
    """Why a graded trajectory does not enter the loss."""

    ZERO_VARIANCE = "ZeroVariance"
    """All rewards of its group are equal: nothing to learn from."""

    OVERLONG = "Overlong"
    """It ended by a limit on context, turn or steps."""

    NOTHING_SAMPLED = "NothingSampled"
    """The policy sampled no token: the prompt alone exceeded the context."""


def is_overlong(trajectory: Trajectory) -> bool:
    """Whether the trial ended by a limit on context, turn or steps; time does not count."""
    return trajectory.outcome in _OVERLONG


def has_zero_variance(rewards: Sequence[float], tolerance: float) -> bool:
    """Whether all rewards of a group lie within the tolerance (DAPO's dynamic sampling, arXiv:2503.14476)."""
    return max(rewards) - min(rewards) <= tolerance


def left_out(group: Sequence[Trajectory], rewards: Sequence[float], spec: FilterSpec) -> list[LeftOut | None]:
    """Why each of a group's valid trajectories is left out, or none where it is trained."""
    if spec.zero_variance and has_zero_variance(rewards, spec.zero_variance_tolerance):
        return [LeftOut.ZERO_VARIANCE] * len(group)
    return [_own_reason(trajectory, spec) for trajectory in group]


def _own_reason(trajectory: Trajectory, spec: FilterSpec) -> LeftOut | None:
    if trajectory.num_sampled == 0:
        return LeftOut.NOTHING_SAMPLED
    if spec.overlong and is_overlong(trajectory):
        return LeftOut.OVERLONG
    return None
