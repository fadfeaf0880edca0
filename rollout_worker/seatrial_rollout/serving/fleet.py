"""One engine on every node that offers itself: nodes come and go, engines follow."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import SeatrialError
from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.serving import PoolReport
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.metrics import PoolMetrics, combine, retired

_LOOK_SECONDS = 2.0
"""Time between two looks at the nodes, and at an engine's metrics."""
_FIRST_BACK_OFF_SECONDS = 5.0
_MAX_BACK_OFF_SECONDS = 300.0
_FAILURE_HEAD_CHARS, _FAILURE_TAIL_CHARS = 200, 600
"""What is told of a long failure: how it begins, and how the log in it ends."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineNode:
    """A node that offers itself."""

    node_id: str
    host: str
    """Its host name: the pod's name in Kubernetes."""
    has_gpus: bool = False

    @property
    def engine_name(self) -> str:
        """Name of its engine: tells the pod, and which start of it."""
        return f"{self.host}-{self.node_id[:6]}"


class RunningEngine(Protocol):
    """An engine that came up: an `EnginePool` of one."""

    def addresses(self) -> list[EngineAddress]:
        """Where it is reached; nowhere while its server is replaced by another."""
        ...

    async def run(self) -> None:
        """Supervise it; ends only with an error."""
        ...

    async def metrics(self) -> PoolMetrics:
        """What it does and did."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...


@dataclass(slots=True)
class _Member:
    """One node's engine."""

    node: EngineNode
    engine: RunningEngine | None = None
    failure: str = ""
    metrics: PoolMetrics = field(default_factory=PoolMetrics)

    @property
    def addresses(self) -> list[EngineAddress]:
        return self.engine.addresses() if self.engine else []

    @property
    def status(self) -> EngineStatus:
        state = "Ready" if self.addresses else "Failed" if self.failure else "Starting"
        capacity = self.metrics.kv_capacity_tokens
        return EngineStatus(name=self.node.engine_name, state=state, weight_version=0, kv_tokens=capacity)


class EngineFleet:
    """Engines that follow the nodes. Keep `run` in a task group; it stops all engines when it is cancelled.

    run: every two seconds, a task for each node that is new, an end to that of each node that is gone
    each: start an engine on the node ─▶ supervise it ─▶ after a failure again, later
    """

    def __init__(
        self,
        nodes: Callable[[], list[EngineNode]],
        start_engine: Callable[[EngineNode], Awaitable[RunningEngine]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a fleet without engines.

        Args:
            nodes: Tells the nodes of this moment; may block.
            start_engine: Starts an engine on a node; raises `SeatrialError` if it does not come up.
            clock: The time.
        """
        self._nodes = nodes
        self._start_engine = start_engine
        self._clock = clock
        self._members: dict[str, _Member] = {}
        self._retired = PoolMetrics()

    def addresses(self) -> list[EngineAddress]:
        """Where the engines that are up are reached."""
        return [address for member in self._ordered() for address in member.addresses]

    def report(self) -> PoolReport:
        """How every engine is."""
        members, totals = self._ordered(), self.metrics()
        return PoolReport(
            engines=[member.status for member in members],
            failures={member.node.engine_name: member.failure for member in members if member.failure},
            running=totals.running,
            waiting=totals.waiting,
        )

    def metrics(self) -> PoolMetrics:
        """What all engines did as of the last look; counters never fall when an engine goes."""
        return combine([self._retired, *(member.metrics for member in self._members.values())])

    async def run(self) -> None:
        """Follow the nodes until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                nodes = {node.node_id: node for node in await asyncio.to_thread(self._nodes)}
                for node_id in tasks.keys() - nodes.keys():
                    log.info("a node is gone", engine=self._members[node_id].node.engine_name)
                    tasks.pop(node_id).cancel()
                for node_id in nodes.keys() - tasks.keys():
                    self._members[node_id] = _Member(nodes[node_id])
                    tasks[node_id] = group.create_task(self._keep(self._members[node_id]))
                await self._clock.sleep(_LOOK_SECONDS)

    def _ordered(self) -> list[_Member]:
        return sorted(self._members.values(), key=lambda member: member.node.engine_name)

    async def _keep(self, member: _Member) -> None:
        """Have one engine on the member's node, until cancelled."""
        back_off = _FIRST_BACK_OFF_SECONDS
        try:
            while True:
                try:
                    await self._serve(member)
                except* (SeatrialError, TimeoutError) as errors:
                    member.failure = _shortened(_first(errors))
                    log.warning("an engine is not there", engine=member.node.engine_name, error=member.failure)
                if member.metrics.kv_capacity_tokens:  # it was up
                    back_off = _FIRST_BACK_OFF_SECONDS
                self._retire(member)
                await self._clock.sleep(back_off)
                back_off = min(2 * back_off, _MAX_BACK_OFF_SECONDS)
        finally:
            self._retire(member)
            del self._members[member.node.node_id]

    async def _serve(self, member: _Member) -> None:
        """Start the member's engine and supervise it; ends with an error."""
        engine = await self._start_engine(member.node)
        try:
            member.engine, member.failure = engine, ""
            log.info("an engine is up", engine=member.node.engine_name)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(engine.run())
                tasks.create_task(self._observe(member, engine))
        finally:
            member.engine = None
            await engine.stop()

    async def _observe(self, member: _Member, engine: RunningEngine) -> None:
        while True:
            member.metrics = await engine.metrics()
            await self._clock.sleep(_LOOK_SECONDS)

    def _retire(self, member: _Member) -> None:
        self._retired = combine([self._retired, retired(member.metrics)])
        member.metrics = PoolMetrics()


def _first(errors: BaseExceptionGroup[Exception]) -> str:
    """The first error in words."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _shortened(text: str) -> str:
    if len(text) <= _FAILURE_HEAD_CHARS + _FAILURE_TAIL_CHARS:
        return text
    return f"{text[:_FAILURE_HEAD_CHARS]} … {text[-_FAILURE_TAIL_CHARS:]}"
