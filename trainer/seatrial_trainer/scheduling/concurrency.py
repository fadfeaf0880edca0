"""How many trials run at once: the ceilings, the estimate behind them, and the controller that follows the engines."""

from dataclasses import dataclass, replace
from typing import Self

from seatrial_api.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bounds on the trials in flight, published by kind."""

    algorithmic: int
    """(S + 1) · batch · group: more can never be in flight within the staleness bound."""
    systems: int | None = None
    """Trials whose tokens fit into the engines' KV cache; none while trajectory length is unknown."""
    places: int | None = None
    """Sandboxes or trial processes there are; none if they don't limit."""

    @property
    def lowest(self) -> int:
        """The ceiling that binds; at least 1."""
        known = (ceiling for ceiling in (self.algorithmic, self.systems, self.places) if ceiling is not None)
        return max(1, min(known))


def trajectory_tokens(trajectory: Trajectory) -> int:
    """Tokens that a trial held in the KV cache at its end: those of its longest sequence."""
    return max((len(sequence.token_ids) for sequence in trajectory.sequences), default=0)


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """Mean tokens of a trajectory, without the bias of looking only at trials that have ended.

    Short trials end first, so the mean over ended ones is too low for as long as a run grows or lengths drift. The
    estimate is exposure over completions: the time that all trials spent running, those still in flight included,
    divided by the number that completed. It is the maximum-likelihood estimate under censoring for exponential
    lengths, and in a steady state it is right for any distribution (Little's law). Trials that infrastructure ended are
    censored: they count as exposure, not as completions. Tokens per second of running come from completed trials.
    """

    forgetting: float = 0.999
    """Weight that is left of the past after each completion: lengths drift while a policy learns."""
    exposure_seconds: float = 0.0
    num_completed: float = 0.0
    completed_tokens: float = 0.0
    completed_seconds: float = 0.0
    num_running: int = 0
    at: float = 0.0
    """Point in time up to which exposure is counted."""

    def started(self, now: float) -> Self:
        """A trial started."""
        return self._move(now, change=+1)

    def ended(self, now: float) -> Self:
        """A trial ended for a reason that says nothing about its length."""
        return self._move(now, change=-1)

    def completed(self, now: float, seconds: float, tokens: int) -> Self:
        """A trial ended by itself after `seconds` with `tokens` in its longest sequence."""
        return replace(
            self,
            exposure_seconds=self._exposure_until(now) * self.forgetting,
            num_completed=(self.num_completed + 1) * self.forgetting,
            completed_tokens=(self.completed_tokens + tokens) * self.forgetting,
            completed_seconds=(self.completed_seconds + seconds) * self.forgetting,
            num_running=self.num_running - 1,
            at=now,
        )

    def mean_tokens(self, now: float) -> float | None:
        """The estimate, or none before the first completion."""
        if self.num_completed == 0 or self.completed_seconds == 0:
            return None
        mean_seconds = self._exposure_until(now) / self.num_completed
        return mean_seconds * self.completed_tokens / self.completed_seconds

    def _move(self, now: float, change: int) -> Self:
        return replace(self, exposure_seconds=self._exposure_until(now), num_running=self.num_running + change, at=now)

    def _exposure_until(self, now: float) -> float:
        return self.exposure_seconds + self.num_running * (now - self.at)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engines say about their KV cache."""

    kv_usage: float
    """Used share, 0 to 1."""
    num_preemptions: int
    """Requests that were thrown out of the cache since the engines started."""
    kv_capacity_tokens: int
    """Tokens that all engines together can hold."""


@dataclass(frozen=True, slots=True)
class Aimd:
    """Additive increase, multiplicative decrease of the trials in flight; slow start before the first trim.

    A limit that does not bind is not raised, and one that was cut is not cut again before trials in flight have come
    down to it: both would act on a state of the engines that the last change has not reached yet.
    """

    limit: int
    """Trials that may be in flight."""
    num_preemptions: int = 0
    """As of the last look."""
    has_trimmed: bool = False
    """Whether slow start is over."""

    grow_below: float = 0.6
    trim_above: float = 0.8
    slow_start_factor: float = 1.25
    trim_factor: float = 0.8

    def follow(self, load: EngineLoad, num_in_flight: int, ceiling: int) -> Self:
        """The controller after one look at the engines.

        Args:
            load: What the engines say now.
            num_in_flight: Trials in flight.
            ceiling: Bound that growth never passes.
        """
        preempted = load.num_preemptions > self.num_preemptions
        seen = replace(self, num_preemptions=load.num_preemptions, limit=min(self.limit, ceiling))
        if (preempted or load.kv_usage > self.trim_above) and num_in_flight <= self.limit:
            limit = max(1, int(seen.limit * self.trim_factor))
            return replace(seen, limit=limit, has_trimmed=True)
        if not preempted and load.kv_usage < self.grow_below and num_in_flight >= self.limit:
            step = max(1, ceiling // 32) if self.has_trimmed else max(1, int(seen.limit * (self.slow_start_factor - 1)))
            return replace(seen, limit=min(ceiling, seen.limit + step))
        return seen
