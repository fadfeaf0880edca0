"""Time that tests can hold: the clock, and the deadline that runs through a chain of waits."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol, override

from seatrial_api.errors import WaitTimeoutError


class Clock(Protocol):
    """Monotonic time, and the only way to sleep."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock(Clock):
    """The machine's monotonic clock."""

    @override
    def now(self) -> float:
        return time.monotonic()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251  the one place that may


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """One point in time that a chain of waits shares.

    Every wait has a deadline and says what it waits for, so that a stuck run names its cause.
    """

    at: float
    """Point on the clock, in seconds."""
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> "Deadline":
        """A deadline `seconds` from now."""
        return cls(clock.now() + seconds, clock)

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock.now())

    def check(self, waiting_for: str) -> None:
        """Raise if the deadline has passed.

        Raises:
            WaitTimeoutError: naming what was waited for.
        """
        if self.remaining <= 0:
            raise WaitTimeoutError(waiting_for=waiting_for)
