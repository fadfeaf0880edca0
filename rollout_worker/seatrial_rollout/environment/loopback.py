"""A port on a sandbox's own loopback that we serve: the one way from inside to outside.

In phase Agent it leads to the token-exact proxy, for agents that run inside; in phase Verify to the judge.

The keeper, being inside, makes the listening socket and hands it over; connections to it never touch another network.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from seatrial_sandbox.errors import SandboxDiedError

HOST = "127.0.0.1"
_BACKLOG = 128
_HAND_OVER_SECONDS = 30.0

type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection from inside until its end; its connection is closed for it."""


async def offer_port(connection: socket.socket) -> None:
    """The keeper's side: open a port, and give it away."""
    with connection, socket.create_server((HOST, 0), backlog=_BACKLOG) as listener:
        socket.send_fds(connection, [b"p"], [listener.fileno()])


@asynccontextmanager
async def served_port(address: Path, serve: Serve) -> AsyncIterator[int]:
    """Serve a port of a sandbox while the block runs; yields its number.

    Args:
        address: Where the keeper offers ports.
        serve: Serves each connection.

    Raises:
        SandboxDiedError: If the keeper does not answer.
    """
    listener = await asyncio.to_thread(_take_port, address)
    async with Connections(serve) as connections:
        server = await asyncio.start_server(connections.serve, sock=listener)
        try:
            yield listener.getsockname()[1]
        finally:
            server.close()


class Connections:
    """Connections that are served; those still open when the block ends are closed."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one, in a task of its own."""
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):  # the client sees its connection close
            await self._serve(reader, writer)
        writer.close()


def _take_port(address: Path) -> socket.socket:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_HAND_OVER_SECONDS)
        with suppress(OSError):
            connection.connect(str(address))
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            if descriptors:
                return socket.socket(fileno=descriptors[0])
    raise SandboxDiedError("the sandbox ended before it could open a port")
