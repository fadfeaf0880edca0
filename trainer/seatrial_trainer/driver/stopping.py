"""How work is broken off when a person or the platform wants the driver to end."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class StopRequestedError(Exception):
    """The stage was asked to stop; what it stored allows it to go on."""


async def unless_stopped[T](stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, or not even begun, if `stop` is set first.

    What `work` raises is raised as it is.

    Raises:
        StopRequestedError: if `stop` was set before `work` was done.
    """
    if stop.is_set():
        work.close()
        raise StopRequestedError
    try:
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(stop.wait())
            working = tasks.create_task(work)
            await asyncio.wait((stopped, working), return_when=asyncio.FIRST_COMPLETED)
            is_done = working.done()
            stopped.cancel()
            if not is_done:
                working.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    if not is_done:
        raise StopRequestedError
    return working.result()
