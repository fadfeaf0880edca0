"""Guards: pure checks of the last steps that end a Train stage before it burns money."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import override

from seatrial_api.spec.operations import GuardsSpec
from seatrial_trainer.observability.step_record import StepRecord


@dataclass(frozen=True, slots=True)
class GuardFired:
    """A guard and what it saw."""

    guard: str
    """Field of `spec.guards`."""
    value: float
    bound: float

    @override
    def __str__(self) -> str:
        return (
            f"guard {self.guard} fired: {self.value:.4g} against a bound of {self.bound:.4g}; "
            f"change spec.guards.{self.guard} or resume to go on from the checkpoint"
        )


def check(
    guards: GuardsSpec,
    history: Sequence[StepRecord],
    silent: frozenset[str] = frozenset(),
    validations: Mapping[int, float] = MappingProxyType({}),
) -> GuardFired | None:
    """The first guard that fires after the newest step, or none.

    Args:
        guards: Bounds; an empty one is off.
        history: Steps, the newest last; at least one.
        silent: Guards that fired before and are not armed again yet.
        validations: Validation pass@1 by weight version.
    """
    for name, value, bound in _measurements(guards, history, validations):
        if name not in silent and value is not None and bound is not None and not _holds(name, value, bound):
            return GuardFired(name, value, bound)
    return None


def _holds(name: str, value: float, bound: float) -> bool:
    if math.isnan(value):
        return False
    return value >= bound if name == "minEntropy" else value <= bound


def _measurements(
    guards: GuardsSpec, history: Sequence[StepRecord], validations: Mapping[int, float]
) -> Iterator[tuple[str, float | None, float | None]]:
    newest = history[-1]
    window = history[-guards.window_steps :]
    yield "notFinite", _not_finite(newest), 0.0
    yield "maxLogprobDiff", newest.fresh_logprob_abs_diff_mean, guards.max_logprob_diff
    yield "maxMismatchKl", newest.mismatch_kl, guards.max_mismatch_kl
    yield "maxEntropy", newest.entropy, guards.max_entropy
    yield "minEntropy", newest.entropy, guards.min_entropy
    yield "maxErrorRate", fmean(step.error_rate for step in window), guards.max_error_rate
    yield "maxLengthSkew", _length_skew(window), guards.max_length_skew
    yield "maxRewardJump", _reward_jump(history, guards.window_steps), guards.max_reward_jump
    yield "maxRewardHacking", _reward_hacking(history, validations, guards.window_steps), guards.max_reward_hacking


def _not_finite(step: StepRecord) -> float:
    numbers = (step.loss, step.entropy, step.mismatch_kl, step.reward_mean)
    return float(step.skipped_steps + sum(not math.isfinite(number) for number in numbers))


def _length_skew(window: Sequence[StepRecord]) -> float | None:
    quartiles = [step.error_rate_by_length_quartile for step in window if step.error_rate_by_length_quartile]
    if not quartiles:
        return None
    shortest = fmean(rates[0] for rates in quartiles)
    longest = fmean(rates[-1] for rates in quartiles)
    if longest == 0:
        return 0.0
    return longest / shortest if shortest > 0 else math.inf


def _reward_jump(history: Sequence[StepRecord], window_steps: int) -> float | None:
    before = [step.reward_mean for step in history[-window_steps - 1 : -1]]
    if len(before) < window_steps or len(before) < 2:
        return None
    spread = pstdev(before)
    jump = abs(history[-1].reward_mean - fmean(before))
    if jump == 0:
        return 0.0
    return jump / spread if spread > 0 else math.inf


def _reward_hacking(history: Sequence[StepRecord], validations: Mapping[int, float], window_steps: int) -> float | None:
    """How far success in training rose while what cannot be trained on got worse by as much.

    A policy that learns gets better in both; one that has found out a verifier, or memorised its tasks, in training
    alone. Each signal is the smaller of the two movements, so that both have to pass the bound.
    """
    signals = [_against_validation(history, validations, window_steps), _with_tampering(history, window_steps)]
    return max((signal for signal in signals if signal is not None), default=None)


def _against_validation(
    history: Sequence[StepRecord], validations: Mapping[int, float], window_steps: int
) -> float | None:
    if len(validations) < 2:
        return None
    newest = max(validations)
    best = max(validations, key=lambda version: (validations[version], version))
    before, after = (
        [step for step in history if version - window_steps < step.version <= version] for version in (best, newest)
    )
    if not before or not after:
        return None
    return max(0.0, min(_rise(before, after), validations[best] - validations[newest]))


def _with_tampering(history: Sequence[StepRecord], window_steps: int) -> float | None:
    if len(history) < 2 * window_steps:
        return None
    first, last = history[:window_steps], history[-window_steps:]
    tampering = fmean(step.tampering_rate for step in last) - fmean(step.tampering_rate for step in first)
    return max(0.0, min(_rise(first, last), tampering))


def _rise(before: Sequence[StepRecord], after: Sequence[StepRecord]) -> float:
    """Of the mean reward or of the pass rate: with partial credit, what is gamed may never earn full marks."""
    reward = fmean(step.reward_mean for step in after) - fmean(step.reward_mean for step in before)
    passed = fmean(step.pass_rate for step in after) - fmean(step.pass_rate for step in before)
    return max(reward, passed)
