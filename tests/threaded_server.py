"""An HTTP server in a thread of its own, for tests whose event loops come and go."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from aiohttp import web

from tests.web_servers import web_server

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
            async with web_server(app, handler_cancellation=True) as host:
                loops.append(asyncio.get_running_loop())
                urls.append(f"http://{host}")
                started.set()
                await stop.wait()
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
