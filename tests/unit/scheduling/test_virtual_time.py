import asyncio
import time

import pytest

from seatrial_api.clock import Deadline
from seatrial_trainer.scheduling.virtual_time import DeadlockError, LoopClock, run_in_virtual_time

CLOCK = LoopClock()


def test_a_day_passes_in_no_time_and_in_order() -> None:
    woken: list[tuple[float, str]] = []

    async def sleep(name: str, seconds: float) -> None:
        await CLOCK.sleep(seconds)
        woken.append((CLOCK.now(), name))

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sleep("late", 86_400.0))
            tasks.create_task(sleep("early", 0.001))
            tasks.create_task(sleep("middle", 60.0))

    start = time.monotonic()
    run_in_virtual_time(main())

    assert woken == [(0.001, "early"), (60.0, "middle"), (86_400.0, "late")]
    assert time.monotonic() - start < 5


def test_a_timeout_fires_in_virtual_time() -> None:
    async def main() -> float:
        deadline = Deadline.after(30.0, CLOCK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(deadline.remaining):
                await asyncio.Event().wait()
        return CLOCK.now()

    assert run_in_virtual_time(main()) == 30.0


def test_tasks_that_wait_for_each_other_are_a_deadlock_and_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="every task waits for another one"):
        run_in_virtual_time(main())
