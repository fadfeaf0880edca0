"""What is taken from rewards before advantages are computed."""

from collections.abc import Sequence

from seatrial_api.spec.algorithm import PenaltySpec
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.algorithms.filters import is_overlong
from seatrial_trainer.evaluation.summary import passed


def penalised_rewards(group: Sequence[Trajectory], spec: PenaltySpec) -> list[float]:
    """Each trajectory's reward less its penalties; all of them are valid and graded.

    R_i - failed_tool_call · (failed calls) - overlong · [ended by a limit] - length · (T_i - T_min) / (T_max - T_min),
    the last for solved trials only. T counts sampled tokens, its bounds are the group's (after Kimi k1.5,
    arXiv:2501.12599, section 2.3.3).
    """
    counts = [trajectory.num_sampled for trajectory in group]
    shortest, spread = min(counts, default=0), max(counts, default=0) - min(counts, default=0)

    def penalised(trajectory: Trajectory, count: int) -> float:
        reward = trajectory.reward or 0.0
        penalty = spec.failed_tool_call * trajectory.num_failed_tool_calls
        if is_overlong(trajectory):
            penalty += spec.overlong
        if passed(trajectory) and spread:
            penalty += spec.length * (count - shortest) / spread
        return reward - penalty

    return [penalised(trajectory, count) for trajectory, count in zip(group, counts, strict=True)]
