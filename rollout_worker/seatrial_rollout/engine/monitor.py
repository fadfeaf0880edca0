"""Looks at a vLLM server: is it well, and what has it done."""

import structlog

from seatrial_api.clock import Clock, Deadline
from seatrial_rollout.engine.admin import ADMIN_ERRORS, VllmAdmin
from seatrial_rollout.engine.metrics import PoolMetrics, combine, parse_metrics, retired
from seatrial_rollout.engine.server import VllmServer
from seatrial_rollout.engine.supervision import HangLimits, ProgressWatch

_METRICS_SECONDS = 10.0

log = structlog.get_logger()


class Monitor:
    """Observes one engine's servers, one after the other; counters go on over a replacement."""

    def __init__(self, limits: HangLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._progress = ProgressWatch(limits)
        self._retired = PoolMetrics()
        self._last = PoolMetrics()

    async def find_fault(self, server: VllmServer, *, may_run: bool) -> str | None:
        """What is wrong with the server, if anything.

        Args:
            server: The server of the moment.
            may_run: False while it is paused: it then owes no progress.
        """
        if not server.is_alive:
            return "vLLM has ended"
        if not await server.is_healthy(timeout_seconds=self._limits.health_timeout_seconds):
            return "vLLM is not healthy"
        await self.metrics(server)
        if self._progress.is_stalled(self._last, now=self._clock.now(), may_run=may_run):
            return f"vLLM has {self._last.running} requests and makes no progress"
        return None

    async def metrics(self, server: VllmServer) -> PoolMetrics:
        """What the server does now and all servers have done; of a silent one, what it said last."""
        if server.is_alive:
            deadline = Deadline.after(_METRICS_SECONDS, self._clock)
            try:
                self._last = parse_metrics(await VllmAdmin(server.session).metrics_text(deadline))
            except ADMIN_ERRORS as error:
                log.warning("vllm metrics failed", server=server.server_id, error=str(error))
        return combine([self._last, self._retired])

    def retire(self) -> None:
        """The server is being replaced: keep its counters, expect nothing of it."""
        self._retired = combine([self._retired, retired(self._last)])
        self._last = PoolMetrics(kv_capacity_tokens=self._last.kv_capacity_tokens)
        self._progress = ProgressWatch(self._limits)
