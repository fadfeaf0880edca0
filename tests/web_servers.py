"""HTTP servers in the event loop of a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def web_server(app: web.Application, **runner: Any) -> AsyncIterator[str]:
    """Serve an application until the block ends; yields its host and port.

    Args:
        app: The application.
        runner: Settings of its `AppRunner`.
    """
    server = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, **runner)
    try:
        await server.setup()
        await web.TCPSite(server, "127.0.0.1", 0, backlog=4096).start()
        yield f"127.0.0.1:{server.addresses[0][1]}"
    finally:
        await server.cleanup()
