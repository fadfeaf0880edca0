"""The time that is charged to the agent: a clock that stops while it waits for us."""

from collections.abc import Iterator
from contextlib import contextmanager

from seatrial_api.clock import SYSTEM_CLOCK, Clock


class TrialClock:
    """Charged time of one trial.

    It runs from `start` to `end`, stands still inside `stopped()` (a sandbox is restored, a judge is waited for), and
    gives back what an engine reports to have waited (queue, weight sync, restart).
    """

    def __init__(self, budget_seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._budget = budget_seconds
        self._clock = clock
        self._started: float | None = None
        self._ended: float | None = None
        self._excused = 0.0
        self._num_stops = 0
        self._stopped_at = 0.0

    def start(self) -> None:
        """Begin to charge."""
        self._started = self._clock.now()

    def end(self) -> None:
        """Charge no more: the agent has ended."""
        self._ended = self._now()

    @property
    def charged(self) -> float:
        """Seconds charged so far."""
        if self._started is None:
            return 0.0
        return max(0.0, self._now() - self._started - self._excused)

    @property
    def remaining(self) -> float:
        """Seconds of the budget that are left, never below zero."""
        return max(0.0, self._budget - self.charged)

    @property
    def is_spent(self) -> bool:
        """Whether the agent has used up its time."""
        return self.remaining <= 0

    def excuse(self, seconds: float) -> None:
        """Give back time that went by while the agent could do nothing."""
        if self._ended is None:
            self._excused += max(0.0, seconds)

    def charge(self, seconds: float) -> None:
        """Take time that went by before this clock was there."""
        if self._ended is None:
            self._excused -= seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand still for the time of a `with` block; blocks may nest and overlap."""
        if self._num_stops == 0:
            self._stopped_at = self._clock.now()
        self._num_stops += 1
        try:
            yield
        finally:
            self._num_stops -= 1
            if self._num_stops == 0:
                self.excuse(self._clock.now() - self._stopped_at)

    def _now(self) -> float:
        if self._ended is not None:
            return self._ended
        return self._stopped_at if self._num_stops else self._clock.now()
