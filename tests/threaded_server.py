"""An HTTP server in a thread of its own, for tests whose event loops come and go."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from aiohttp import web

_WAIT_SECONDS = 10


@contextmanager
def threaded_server(make_app: Callable[[], AbstractAsyncContextManager[web.Application]]) -> Iterator[str]:
    """Serve the application until the block ends; yields the server's URL."""
    loops: list[asyncio.AbstractEventLoop] = []
    urls: list[str] = []
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async with make_app() as app:
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address: Any = runner.addresses[0]
            loops.append(asyncio.get_running_loop())
            urls.append(f"http://127.0.0.1:{address[1]}")
            started.set()
            await stop.wait()
            await runner.cleanup()
            await _end_all_tasks()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    if not started.wait(_WAIT_SECONDS):
        raise TimeoutError("the server did not start")
    try:
        yield urls[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(_WAIT_SECONDS)


async def _end_all_tasks() -> None:
    """End requests that go on after their client is gone, so that what they hold is closed before the loop is."""
    current = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not current]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_WAIT_SECONDS)
