"""Engines without a model: latency-faithful, with seats, a KV cache and deaths."""

import asyncio
import math
from dataclasses import dataclass

from seatrial_trainer.scheduling.concurrency import EngineLoad
from seatrial_trainer.scheduling.virtual_time import LoopClock


class EngineDiedError(Exception):
    """The engine of a trial died, or no engine lives."""


@dataclass(frozen=True, slots=True)
class Death:
    """One engine is gone for a while, and with it the requests that it ran."""

    engine: int
    at: float
    """Point in time, in seconds."""
    down_seconds: float


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Requests wait in order of arrival for a seat, and then have the speed that the engine's load leaves them.

    The load is looked at when a turn begins. A cache that is full makes the engine throw requests out and compute
    their contexts again: every turn that begins then takes that much longer.
    """

    num_engines: int = 10
    seats: int = 55
    """Requests that an engine runs at once at full speed."""
    tokens_per_second: float = 40.0
    """Speed of one request on an idle engine."""
    seconds_per_neighbour: float = 0.0
    """What each other request that runs adds to the time of a token."""
    kv_capacity: int = 20_000
    """Simulated tokens that all engines can hold."""
    recomputed_per_second: float = math.inf
    """Simulated tokens of thrown-out contexts that an engine computes again."""
    deaths: tuple[Death, ...] = ()


class SimulatedEngines:
    """A pool with a sticky least-loaded router."""

    def __init__(self, model: EngineModel) -> None:
        """All engines live and idle."""
        self._model = model
        self._clock = LoopClock()
        self._seats = [asyncio.Semaphore(model.seats) for _ in range(model.num_engines)]
        self._num_trials = [0] * model.num_engines
        self._num_requests = [0] * model.num_engines
        self._resident_tokens = 0
        self._num_preemptions = 0
        self.seat_seconds = 0.0
        """Time that seats were taken, over all seats."""

    def assign(self) -> int:
        """The engine for a new trial.

        Raises:
            EngineDiedError: if none lives.
        """
        now = self._clock.now()
        living = [engine for engine in range(self._model.num_engines) if self._death(engine, now, now) is None]
        if not living:
            raise EngineDiedError
        engine = min(living, key=self._num_trials.__getitem__)
        self._num_trials[engine] += 1
        return engine

    def release(self, engine: int, resident_tokens: int) -> None:
        """A trial ended; what it held in the cache is free."""
        self._num_trials[engine] -= 1
        self._resident_tokens -= resident_tokens

    async def generate(self, engine: int, num_tokens: int, growth: int, context: int = 0) -> None:
        """Sample `num_tokens`.

        Args:
            engine: Where.
            num_tokens: How many.
            growth: Simulated tokens by which the trial's context grows.
            context: Simulated tokens of the context so far.

        Raises:
            EngineDiedError: if the engine dies meanwhile.
        """
        async with self._seats[engine]:
            now = self._clock.now()
            seconds = self._seconds(engine, num_tokens, context)
            death = self._death(engine, now, now + seconds)
            if death is not None:
                await self._clock.sleep(max(0.0, death.at - now))
                raise EngineDiedError
            self._num_requests[engine] += 1
            try:
                await self._clock.sleep(seconds)
            finally:
                self._num_requests[engine] -= 1
        self.seat_seconds += seconds
        self._resident_tokens += growth
        self._num_preemptions += self._is_full

    def _seconds(self, engine: int, num_tokens: int, context: int) -> float:
        a_token = 1 / self._model.tokens_per_second + self._model.seconds_per_neighbour * self._num_requests[engine]
        recomputed = context / self._model.recomputed_per_second if self._is_full else 0.0
        return num_tokens * a_token + recomputed

    @property
    def _is_full(self) -> bool:
        return self._resident_tokens > self._model.kv_capacity

    async def load(self) -> EngineLoad:
        """What the engines say about their cache."""
        usage = min(1.0, self._resident_tokens / self._model.kv_capacity)
        return EngineLoad(usage, self._num_preemptions, self._model.kv_capacity)

    def _death(self, engine: int, start: float, stop: float) -> Death | None:
        for death in self._model.deaths:
            if death.engine == engine and death.at <= stop and start < death.at + death.down_seconds:
                return death
        return None
