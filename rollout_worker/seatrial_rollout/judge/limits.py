"""How much a key may do: pure bookkeeping, the time is given."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Window:
    """No more than `limit` within any `seconds`, wherever a provider begins to count.

    What is sent counts until it has been answered and the window has passed since: it reached the provider at some
    time before the answer. Counting from the send would let two windows overlap on the way. The price is one answer's
    time per window, and where that is long the number of requests at once is the tighter bound.
    """

    limit: float
    seconds: float
    _under_way: float = 0.0
    _past: deque[tuple[float, float]] = field(default_factory=deque)
    """Time of the answer and amount, oldest first."""
    _past_sum: float = 0.0

    def ready_at(self, amount: float, now: float) -> float | None:
        """When an amount fits: now, later, or, with None, not before something under way has ended."""
        self._forget(now)
        excess = self._under_way + self._past_sum + min(amount, self.limit) - self.limit
        if excess <= 0:
            return now
        for ended, freed in self._past:
            excess -= freed
            if excess <= 0:
                return ended + self.seconds
        return None

    def begin(self, amount: float) -> None:
        """An amount is sent."""
        self._under_way += min(amount, self.limit)

    def end(self, amount: float, actual: float, now: float) -> None:
        """An amount that was sent has been answered, and was really another."""
        self._under_way -= min(amount, self.limit)
        if actual > 0:
            self._past.append((now, min(actual, self.limit)))
            self._past_sum += self._past[-1][1]

    def _forget(self, now: float) -> None:
        while self._past and self._past[0][0] + self.seconds <= now:
            self._past_sum -= self._past.popleft()[1]


@dataclass(slots=True)
class Breaker:
    """Spares what keeps failing.

    closed ──`threshold` failures in a row──▶ open ──time──▶ half open ──one probe succeeds──▶ closed
                                               ▲                └──────── it fails ────────────┐
                                               └──────────── for twice the time ───────────────┘
    """

    threshold: int = 5
    first_seconds: float = 2.0
    max_seconds: float = 120.0
    _failures: int = 0
    _open_until: float | None = None
    """Set from the opening to the first success."""
    _seconds: float = 0.0
    _is_probing: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is wrong."""
        return self._open_until is None

    def ready_at(self, now: float) -> float | None:
        """When a request may pass; None while the probe is under way."""
        if self._open_until is None:
            return now
        if now < self._open_until:
            return self._open_until
        return None if self._is_probing else now

    def begin(self) -> None:
        """A request passes."""
        self._is_probing = self._open_until is not None

    def succeed(self) -> None:
        """It was answered."""
        self._failures, self._open_until, self._seconds, self._is_probing = 0, None, 0.0, False

    def fail(self, now: float, *, at_once: bool = False) -> None:
        """It was not.

        Args:
            now: The time.
            at_once: Open without waiting for more failures.
        """
        self._failures += 1
        was_probing, self._is_probing = self._is_probing, False
        if self._open_until is not None and not was_probing:
            return  # sent before it opened
        if was_probing or at_once or self._failures >= self.threshold:
            self._seconds = min(2 * self._seconds or self.first_seconds, self.max_seconds)
            self._open_until = now + self._seconds

    def give_up(self) -> None:
        """It told nothing: cancelled, or answered with something that is nobody's fault."""
        self._is_probing = False
