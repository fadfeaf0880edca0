"""Blocking context managers beside the event loop."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager


@asynccontextmanager
async def in_thread[T](manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave `manager` in a thread: hashing and syncing a checkpoint takes seconds.

    What its leaving raises is raised here; an exception of the block it is told of, and may swallow, as ever.
    """
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException:
        if not await asyncio.to_thread(manager.__exit__, *sys.exc_info()):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)
