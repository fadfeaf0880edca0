"""From what a step did to its record."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from seatrial_api.finding import FindingKind
from seatrial_api.spec.algorithm import AlgorithmSpec
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.algorithms.credit import batch_statistics
from seatrial_trainer.algorithms.filters import has_zero_variance
from seatrial_trainer.algorithms.penalties import penalised_rewards
from seatrial_trainer.evaluation.summary import behaviour, passed
from seatrial_trainer.observability.step_record import StepRecord
from seatrial_trainer.policy.batch import OptimStats, StepStats
from seatrial_trainer.scheduling.concurrency import trajectory_tokens
from seatrial_trainer.scheduling.groups import Batch

_MIN_TRIALS_FOR_QUARTILES = 16
_TAMPERING = frozenset({FindingKind.REFUSED, FindingKind.TAMPERING})


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds by phase."""

    buffer_wait: float
    train: float
    sync: float
    paused: float
    step: float


@dataclass
class TrialWindow:
    """Trials that ended since the last step, retries and failures included."""

    _ended: list[tuple[int, bool]] = field(default_factory=list)

    def add(self, trajectory: Trajectory) -> None:
        """A trial ended."""
        self._ended.append((trajectory_tokens(trajectory), trajectory.outcome.is_infrastructure))

    def take(self) -> "ErrorRates":
        """The rates since the last call."""
        ended, self._ended = sorted(self._ended), []
        failures = [is_failure for _, is_failure in ended]
        if len(failures) < _MIN_TRIALS_FOR_QUARTILES:
            return ErrorRates(_share(failures), ())
        cuts = [len(failures) * quarter // 4 for quarter in range(5)]
        quartiles = [_share(failures[start:stop]) for start, stop in pairwise(cuts)]
        return ErrorRates(_share(failures), tuple(quartiles))


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Shares of trials with an infrastructure outcome."""

    overall: float
    by_length_quartile: tuple[float, ...]
    """From the shortest quarter of the trials to the longest; empty when there were too few."""


def make_record(
    version: int,
    batch: Batch,
    algorithm: AlgorithmSpec,
    steps: Sequence[tuple[StepStats, OptimStats]],
    times: StepTimes,
    errors: ErrorRates,
) -> StepRecord:
    """Everything about one training batch.

    Args:
        version: Weight version that the step made.
        batch: Its groups.
        algorithm: How rewards became gradients.
        steps: What the policy measured in each optimiser step; empty if no group had anything to teach.
        times: Seconds by phase.
        errors: Rates since the last step.
    """
    groups = [list(group.trajectories) for group in batch.groups]
    trajectories = [trajectory for group in groups for trajectory in group]
    statistics = batch_statistics(groups, algorithm)
    habits = behaviour(trajectories)
    stats = [stat for stat, _ in steps]
    return StepRecord(
        version=version,
        reward_mean=statistics.reward_mean,
        reward_std=statistics.reward_std,
        pass_rate=fmean(passed(trajectory) for trajectory in trajectories),
        groups=len(groups),
        zero_variance_groups=sum(_is_flat(group, algorithm) for group in groups),
        trials=len(trajectories),
        error_rate=errors.overall,
        staleness_mean=fmean(batch.staleness),
        staleness_max=max(batch.staleness),
        staleness=dict(sorted(Counter(batch.staleness).items())),
        entropy=_mean(stats, "entropy"),
        logprob_abs_diff_mean=_mean(stats, "logprob_abs_diff_mean"),
        fresh_logprob_abs_diff_mean=_fresh(stats),
        logprob_abs_diff_max=max((stat.logprob_abs_diff_max for stat in stats), default=0.0),
        mismatch_kl=_mean(stats, "mismatch_kl"),
        clipped_fraction=_mean(stats, "clipped_fraction"),
        kl_to_reference=_mean(stats, "kl_to_reference"),
        loss=sum(stat.loss for stat in stats),
        grad_norm=fmean(optim.grad_norm for _, optim in steps) if steps else 0.0,
        learning_rate=steps[-1][1].learning_rate if steps else 0.0,
        trained_tokens=sum(stat.num_tokens for stat in stats),
        total_tokens=sum(stat.num_total_tokens for stat in stats),
        packing_waste=fmean(stat.packing_waste for stat in stats) if stats else 0.0,
        turns_mean=habits["turns"],
        tool_failure_rate=1.0 - habits["tool_success_rate"],
        sampled_tokens_mean=fmean(trajectory.num_sampled for trajectory in trajectories),
        buffer_wait_seconds=times.buffer_wait,
        hold_seconds=batch.hold_seconds,
        train_seconds=times.train,
        sync_seconds=times.sync,
        paused_seconds=times.paused,
        step_seconds=times.step,
        skipped_steps=sum(optim.skipped for _, optim in steps),
        tampering_rate=fmean(map(_has_tampered, trajectories)),
        rewards_by_domain=statistics.reward_mean_by_domain,
        rewards_by_staleness=_rewards_by_staleness(batch),
        error_rate_by_length_quartile=errors.by_length_quartile,
    )


def _rewards_by_staleness(batch: Batch) -> dict[int, float]:
    rewards: dict[int, list[float]] = {}
    for group, staleness in zip(batch.groups, batch.staleness, strict=True):
        reward = fmean(trajectory.reward or 0.0 for trajectory in group.trajectories)
        rewards.setdefault(staleness, []).append(reward)
    return {staleness: fmean(rewards[staleness]) for staleness in sorted(rewards)}


def _has_tampered(trajectory: Trajectory) -> bool:
    return any(finding.kind in _TAMPERING for finding in trajectory.findings)


def _is_flat(group: Sequence[Trajectory], algorithm: AlgorithmSpec) -> bool:
    return has_zero_variance(penalised_rewards(group, algorithm.penalties), algorithm.filters.zero_variance_tolerance)


def _mean(stats: Sequence[StepStats], name: str) -> float:
    """Mean over tokens, not over optimiser steps."""
    tokens = sum(stat.num_tokens for stat in stats)
    return sum(getattr(stat, name) * stat.num_tokens for stat in stats) / tokens if tokens else 0.0


def _fresh(stats: Sequence[StepStats]) -> float | None:
    tokens = sum(stat.num_fresh_tokens for stat in stats)
    return sum(stat.fresh_logprob_abs_diff_sum for stat in stats) / tokens if tokens else None


def _share(flags: Sequence[bool]) -> float:
    return fmean(flags) if flags else 0.0
