"""Everything that is measured about one training step: the one source of guards, trackers and reports."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training batch, from the wait for its groups to the engines that serve the new weights."""

    version: int
    """Weight version that the step made."""
    reward_mean: float
    """Verifier's reward over valid trials, before penalties."""
    reward_std: float
    pass_rate: float
    """Share of valid trials with full marks."""
    groups: int
    zero_variance_groups: int
    """Groups whose rewards, after penalties, are all equal: they have nothing to teach."""
    trials: int
    """Valid trials in the batch."""
    error_rate: float
    """Share of trials with an infrastructure outcome among those that ended since the last step."""
    staleness_mean: float
    """Steps between a group's admission and its training."""
    staleness_max: int
    staleness: dict[int, int]
    """Groups of the batch by staleness."""
    entropy: float
    """Nats per sampled token."""
    logprob_abs_diff_mean: float
    """Mean of |log pi_rollout - log pi_train| over all trained tokens; staleness is part of it."""
    fresh_logprob_abs_diff_mean: float | None
    """The same over tokens that the current weights sampled: pure mismatch of engine and trainer."""
    logprob_abs_diff_max: float
    mismatch_kl: float
    clipped_fraction: float
    kl_to_reference: float
    loss: float
    grad_norm: float
    learning_rate: float
    trained_tokens: int
    total_tokens: int
    packing_waste: float
    turns_mean: float
    tool_failure_rate: float
    sampled_tokens_mean: float
    buffer_wait_seconds: float
    """Time that the trainer waited for the batch."""
    hold_seconds: float
    """Part of it in which enough groups were finished and the step waited for those that were due."""
    train_seconds: float
    sync_seconds: float
    paused_seconds: float
    step_seconds: float
    skipped_steps: int = 0
    """Optimiser steps left out because the gradient was not finite."""
    rewards_by_domain: dict[str, float] = field(default_factory=dict)
    rewards_by_staleness: dict[int, float] = field(default_factory=dict)
    """Mean over groups of each one's mean reward, by the group's staleness."""
    tampering_rate: float = 0.0
    """Share of valid trials that tried what only a verifier may, or touched what is its own; as the audit saw it."""
    in_flight_tokens: int = 0
    """Tokens that probes sampled after the step's sync had found them in flight."""
    in_flight_logprob_abs_diff_mean: float | None = None
    """Mean of |log pi_rollout - log pi_train| over them."""
    error_rate_by_length_quartile: tuple[float, ...] = ()
    """Infrastructure failure rate of trials from the shortest quartile to the longest."""

    @classmethod
    def stored(cls, step: Mapping[str, Any]) -> Self:
        """A record from what `asdict` made of it and JSON kept, which has neither tuples nor numbers as keys."""
        return cls(
            **{
                **step,
                "staleness": _with_numbers(step["staleness"]),
                "rewards_by_staleness": _with_numbers(step.get("rewards_by_staleness", {})),
                "error_rate_by_length_quartile": tuple(step["error_rate_by_length_quartile"]),
            }
        )

    def scalars(self) -> dict[str, float]:
        """Every number by its name, nested ones as `name/key`."""
        flat: dict[str, float] = {}
        for name, value in asdict(self).items():
            match value:
                case dict():
                    flat |= {f"{name}/{key}": float(item) for key, item in value.items()}
                case tuple():
                    flat |= {f"{name}/{index}": float(item) for index, item in enumerate(value)}
                case None:
                    pass
                case _:
                    flat[name] = float(value)
        return flat


def rewards_by_cohort(steps: Iterable[StepRecord]) -> dict[int, float]:
    """Mean reward of the trained groups by the weight version that they were admitted at.

    A batch holds what was ready: the short tasks of a version come before its long ones, and a run's own curve moves
    with that, even where nothing is learned. Groups that were admitted together are a sample of the tasks as they are.
    """
    groups: Counter[int] = Counter()
    rewards: dict[int, float] = {}
    for step in steps:
        for staleness, reward in step.rewards_by_staleness.items():
            cohort = step.version - 1 - staleness
            groups[cohort] += step.staleness[staleness]
            rewards[cohort] = rewards.get(cohort, 0.0) + reward * step.staleness[staleness]
    return {cohort: rewards[cohort] / groups[cohort] for cohort in sorted(groups)}


def _with_numbers[T](stored: Mapping[str, T]) -> dict[int, T]:
    return {int(key): value for key, value in stored.items()}
