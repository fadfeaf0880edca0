"""When a vLLM server counts as hung: pure, so that the rule is tested without one."""

from dataclasses import dataclass

from seatrial_rollout.engine.metrics import PoolMetrics


@dataclass(frozen=True, slots=True)
class HangLimits:
    """How long a server may be silent before it is killed and restarted."""

    check_interval_seconds: float = 2.0
    health_timeout_seconds: float = 30.0
    """Without an answer to `/health`."""
    stall_seconds: float = 300.0
    """With running requests and no token read or written; above the longest prefill."""


DEFAULT_HANG_LIMITS = HangLimits()


class ProgressWatch:
    """Tells a server that works from one that has requests and does nothing."""

    def __init__(self, limits: HangLimits) -> None:
        self._limits = limits
        self._tokens = -1
        self._progress_at = 0.0

    def is_stalled(self, metrics: PoolMetrics, *, now: float, may_run: bool) -> bool:
        """Take one observation; whether the server has stalled.

        Args:
            metrics: Of this moment.
            now: Seconds on the clock.
            may_run: False while the server is paused: it then owes no progress.
        """
        tokens = metrics.prompt_tokens_total + metrics.generated_tokens_total
        if tokens != self._tokens or metrics.running == 0 or not may_run:
            self._tokens = tokens
            self._progress_at = now
        return now - self._progress_at > self._limits.stall_seconds
