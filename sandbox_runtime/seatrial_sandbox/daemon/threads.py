"""Blocking work beside the event loop, by threads that are there before an agent can use up all that may be had."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_THREADS = 4


class Threads:
    """Runs blocking functions to their end, whatever becomes of who waits for them."""

    def __init__(self) -> None:
        """Start every thread."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")
        started = threading.Barrier(_THREADS + 1)
        for _ in range(_THREADS):
            self._pool.submit(started.wait)
        started.wait()

    async def run[T](self, function: Callable[[], T]) -> T:
        """The function's result; a caller that is cancelled still waits until the function has ended."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
