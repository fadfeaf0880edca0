"""Engines follow the nodes, over engines that a test starts, breaks and counts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import override

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_rollout.engine.errors import EngineError
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.serving.fleet import EngineFleet, EngineNode

A, B = EngineNode("aaaaaaaa", "pod-a"), EngineNode("bbbbbbbb", "pod-b")


class QuickClock(Clock):
    """Time flies, and others get their turn."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    @override
    def now(self) -> float:
        return self.at

    @override
    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept.append(seconds)
        await SYSTEM_CLOCK.sleep(0.001)


@dataclass
class Engine:
    """An engine that came up."""

    node: EngineNode
    num_tokens: int = 0
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopped: bool = False

    def addresses(self) -> list[EngineAddress]:
        """Where it is."""
        return [] if self.is_stopped else [EngineAddress(self.node.engine_name, "http://x", "t")]

    async def run(self) -> None:
        """Runs until it breaks."""
        await self.broken.wait()
        raise EngineError("it died")

    async def metrics(self) -> PoolMetrics:
        """What it did."""
        return PoolMetrics(generated_tokens_total=self.num_tokens, kv_capacity_tokens=64, running=1)

    async def stop(self) -> None:
        """End."""
        self.is_stopped = True


class Machines:
    """Nodes, and what starts engines on them."""

    def __init__(self, *nodes: EngineNode) -> None:
        self.nodes = list(nodes)
        self.started: list[Engine] = []
        self.num_failures = 0
        """Starts that fail before one goes well."""
        self.clock = QuickClock()
        self.fleet = EngineFleet(lambda: list(self.nodes), self._start, self.clock)

    async def _start(self, node: EngineNode) -> Engine:
        if self.num_failures:
            self.num_failures -= 1
            raise EngineError("no model")
        self.started.append(Engine(node, num_tokens=10))
        return self.started[-1]

    def names(self) -> list[str]:
        """Engines that are up."""
        return [address.engine_id for address in self.fleet.addresses()]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for the fleet."""
        async with asyncio.timeout(10):
            while not condition():
                await self.clock.sleep(0)


@asynccontextmanager
async def running(machines: Machines) -> AsyncIterator[EngineFleet]:
    """The fleet at work."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(machines.fleet.run())
        yield machines.fleet
        task.cancel()


async def test_every_node_gets_an_engine_and_a_node_that_leaves_takes_its_own_along() -> None:
    machines = Machines(A)
    async with running(machines):
        await machines.until(lambda: machines.names() == ["pod-a-aaaaaa"])
        machines.nodes = [A, B]
        await machines.until(lambda: machines.names() == ["pod-a-aaaaaa", "pod-b-bbbbbb"])
        machines.nodes = [B]
        await machines.until(lambda: machines.names() == ["pod-b-bbbbbb"])
        assert [engine.is_stopped for engine in machines.started] == [True, False]


async def test_an_engine_that_is_lost_is_started_again_and_what_it_did_still_counts() -> None:
    machines = Machines(A)
    async with running(machines) as fleet:
        await machines.until(lambda: fleet.metrics().generated_tokens_total == 10)
        machines.started[0].broken.set()
        await machines.until(lambda: fleet.metrics().generated_tokens_total == 20)
        assert machines.started[0].is_stopped
        assert fleet.report().engines[0].state == "Ready"
        assert fleet.metrics().running == 1


async def test_an_engine_that_does_not_come_up_is_tried_ever_more_rarely_and_the_cause_is_told() -> None:
    machines = Machines(A)
    machines.num_failures = 3
    async with running(machines) as fleet:
        await machines.until(lambda: fleet.report().failures)
        assert fleet.report().failures == {"pod-a-aaaaaa": "no model"}
        assert fleet.report().engines[0].state == "Failed"
        await machines.until(machines.names)
        assert fleet.report().failures == {}
    assert [seconds for seconds in machines.clock.slept if seconds >= 5] == [5, 10, 20]


async def test_all_engines_end_with_the_fleet() -> None:
    machines = Machines(A, B)
    async with running(machines):
        await machines.until(lambda: len(machines.names()) == 2)
    assert all(engine.is_stopped for engine in machines.started)
    assert machines.names() == []
