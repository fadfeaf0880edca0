"""What each trajectory of a group earned: penalties, filters, advantages, and figures over a batch of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from seatrial_api.spec.algorithm import AlgorithmSpec
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.algorithms.advantages import advantages
from seatrial_trainer.algorithms.filters import LeftOut, left_out
from seatrial_trainer.algorithms.penalties import penalised_rewards


@dataclass(frozen=True, slots=True)
class Credit:
    """What one graded trajectory earned."""

    trajectory: Trajectory
    reward: float
    """After penalties."""
    advantage: float
    left_out: LeftOut | None
    """Why it is not trained, if it is not."""


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Figures over the graded trajectories of one training batch; filters do not change them."""

    num_groups: int
    num_graded: int
    num_infrastructure_failures: int
    num_trained: int
    """Trajectories that enter the loss."""
    left_out: dict[LeftOut, int]
    """Trajectories that do not, by reason."""
    reward_mean: float
    """The verifier's reward, before penalties."""
    reward_std: float
    """Over all trajectories of the batch, ddof 0."""
    penalty_mean: float
    """What penalties took from the reward."""
    advantage_abs_mean: float
    advantage_std: float
    """ddof 0."""
    reward_mean_by_domain: dict[str, float] = field(default_factory=dict)


def assign_credit(group: Sequence[Trajectory], algorithm: AlgorithmSpec) -> list[Credit]:
    """The credit of a group's graded trajectories; infrastructure failures have none and change none.

    Raises:
        InvalidInputError: the advantage is not defined for these rewards.
    """
    graded = [trajectory for trajectory in group if trajectory.reward is not None]
    if not graded:
        return []
    rewards = penalised_rewards(graded, algorithm.penalties)
    reasons = left_out(graded, rewards, algorithm.filters)
    values = advantages(rewards, algorithm.advantage)
    return [Credit(*parts) for parts in zip(graded, rewards, values, reasons, strict=True)]


def batch_statistics(groups: list[list[Trajectory]], algorithm: AlgorithmSpec) -> BatchStatistics:
    """What one training batch looks like before it is trained.

    Raises:
        InvalidInputError: the advantage is not defined for a group's rewards.
    """
    credits_ = [credit for group in groups for credit in assign_credit(group, algorithm)]
    rewards = [credit.trajectory.reward or 0.0 for credit in credits_]
    values = [credit.advantage for credit in credits_]
    reasons = Counter(credit.left_out for credit in credits_ if credit.left_out is not None)
    by_domain: dict[str, list[float]] = {}
    for credit, reward in zip(credits_, rewards, strict=True):
        by_domain.setdefault(credit.trajectory.domain, []).append(reward)
    return BatchStatistics(
        num_groups=len(groups),
        num_graded=len(credits_),
        num_infrastructure_failures=sum(len(group) for group in groups) - len(credits_),
        num_trained=len(credits_) - reasons.total(),
        left_out=dict(reasons),
        reward_mean=fmean(rewards or [0.0]),
        reward_std=pstdev(rewards or [0.0]),
        penalty_mean=fmean([r - c.reward for r, c in zip(rewards, credits_, strict=True)] or [0.0]),
        advantage_abs_mean=fmean([abs(value) for value in values] or [0.0]),
        advantage_std=pstdev(values or [0.0]),
        reward_mean_by_domain={domain: fmean(values) for domain, values in sorted(by_domain.items())},
    )
