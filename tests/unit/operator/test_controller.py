"""The workers: what is due is reconciled, failures are tried again, and one stuck key holds up no other."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import override

from seatrial_api.clock import Clock
from seatrial_operator.controller.controller import Controller
from seatrial_operator.kube.errors import StaleError, UnavailableError
from seatrial_operator.kube.resources import ObjectKey, Watch

A, B = ObjectKey("RLRun", "team", "a"), ObjectKey("RLRun", "team", "b")


@dataclass
class HandClock(Clock):
    """Moved by hand; who sleeps wakes when its time has come."""

    at: float = 0.0
    sleepers: list[tuple[float, asyncio.Event]] = field(default_factory=list)

    @override
    def now(self) -> float:
        return self.at

    @override
    async def sleep(self, seconds: float) -> None:
        wake = asyncio.Event()
        self.sleepers.append((self.at + seconds, wake))
        if seconds > 0:
            await wake.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and all who woke go on."""
        self.at += seconds
        for due, wake in self.sleepers:
            if due <= self.at:
                wake.set()
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    loop = asyncio.get_running_loop()
    for _ in range(50):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


@dataclass
class Recorder:
    """A reconciler that does what the test says."""

    answer: Callable[[ObjectKey], float | None] = lambda _: 300.0
    listed: list[ObjectKey] = field(default_factory=list)
    looks: list[ObjectKey] = field(default_factory=list)
    gates: dict[ObjectKey, asyncio.Event] = field(default_factory=dict)
    kind: str = "RLRun"
    watches: Sequence[Watch] = ()

    async def keys(self) -> list[ObjectKey]:
        """What the test lists."""
        return self.listed

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Remember the look, wait for the key's gate, and answer."""
        self.looks.append(key)
        if key in self.gates:
            await self.gates[key].wait()
        return self.answer(key)


@asynccontextmanager
async def running(reconciler: Recorder, clock: HandClock, workers: int = 4) -> AsyncIterator[Controller]:
    controller = Controller([reconciler], workers=workers, resync_seconds=60.0, clock=clock)
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(controller.run())
        await settle()
        yield controller
        loop.cancel()


async def test_a_key_that_something_asks_for_is_reconciled_and_looked_at_again_in_time() -> None:
    reconciler, clock = Recorder(answer=lambda _: 30.0), HandClock()
    async with running(reconciler, clock) as controller:
        controller.enqueue(A)
        await settle()
        assert reconciler.looks == [A]
        await clock.advance(29)
        assert reconciler.looks == [A]
        await clock.advance(1)
        assert reconciler.looks == [A, A]


async def test_a_stuck_key_holds_up_no_other_and_is_not_looked_at_twice_at_once() -> None:
    reconciler, clock = Recorder(gates={A: asyncio.Event()}), HandClock()
    async with running(reconciler, clock) as controller:
        controller.enqueue(A)
        controller.enqueue(B)
        await settle()
        controller.enqueue(A)
        await clock.advance(5)
        assert reconciler.looks == [A, B]
        reconciler.gates.pop(A).set()
        await settle()
        assert reconciler.looks == [A, B, A]


async def test_no_more_keys_are_in_work_than_there_are_workers() -> None:
    reconciler, clock = Recorder(gates={A: asyncio.Event()}), HandClock()
    async with running(reconciler, clock, workers=1) as controller:
        controller.enqueue(A)
        controller.enqueue(B)
        await settle()
        assert reconciler.looks == [A]
        reconciler.gates[A].set()
        await settle()
        assert reconciler.looks == [A, B]


async def test_errors_are_tried_again_later_and_stale_looks_soon() -> None:
    errors: list[Exception] = [
        ValueError("a bug"),
        UnavailableError(request="get a", detail="HTTP 500"),
        StaleError(request="apply a", detail="HTTP 409"),
    ]

    def fail(_: ObjectKey) -> float:
        if errors:
            raise errors.pop(0)
        return 300.0

    reconciler, clock = Recorder(answer=fail), HandClock()
    async with running(reconciler, clock) as controller:
        controller.enqueue(A)
        await settle()
        await clock.advance(0.5)
        assert len(reconciler.looks) == 2
        await clock.advance(0.5)
        assert len(reconciler.looks) == 2
        await clock.advance(0.5)
        assert len(reconciler.looks) == 3
        await clock.advance(0.5)
        assert len(reconciler.looks) == 4


async def test_the_resync_finds_what_no_event_told_of() -> None:
    reconciler, clock = Recorder(), HandClock()
    async with running(reconciler, clock):
        reconciler.listed = [A]
        await clock.advance(59)
        assert reconciler.looks == []
        await clock.advance(1)
        assert reconciler.looks == [A]


async def test_an_object_that_is_gone_is_not_looked_at_again() -> None:
    reconciler, clock = Recorder(answer=lambda _: None), HandClock()
    async with running(reconciler, clock) as controller:
        controller.enqueue(A)
        await clock.advance(1000)
        assert reconciler.looks == [A]


async def test_keys_of_other_kinds_are_passed_over() -> None:
    reconciler, clock = Recorder(), HandClock()
    async with running(reconciler, clock) as controller:
        controller.enqueue(ObjectKey("WorldImage", "team", "w"))
        await clock.advance(1)
        assert reconciler.looks == []
