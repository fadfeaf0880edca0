"""An event loop whose time is virtual: hours of waiting pass in no time, the same way at every run."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, override

from seatrial_api.clock import Clock


class DeadlockError(RuntimeError):
    """Nothing runs, nothing will ever wake up, and the main coroutine has not ended."""


class _VirtualSelector(selectors.DefaultSelector):
    """Never sleeps: where a real selector would wait, it lets the time pass instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("every task waits for another one")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop over a `_VirtualSelector`; no threads, no sockets."""

    def __init__(self) -> None:
        self._virtual_selector = _VirtualSelector()
        super().__init__(self._virtual_selector)

    @override
    def time(self) -> float:
        return self._virtual_selector.now


class LoopClock(Clock):
    """The running event loop's own time."""

    @override
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251  the loop's time is what this clock is about


def run_in_virtual_time[T](main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time, from 0 s on.

    Raises:
        DeadlockError: if nothing can run and nothing waits for time to pass.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
