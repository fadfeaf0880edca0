"""Sessions with MCP servers, relayed between a call and a connection."""

import asyncio
from collections.abc import AsyncIterator

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_sandbox.daemon.admission import Context
from seatrial_sandbox.server_spec import SERVER_KEY

OPEN_KEY = "seatrial-session"
"""Metadata that tells a caller that the session is open."""


class _SessionOverError(Exception):
    """One side has hung up."""


def server_of(context: Context) -> str:
    """The server that a call names; empty if it names none."""
    return next((str(value) for key, value in context.invocation_metadata() or () if key == SERVER_KEY), "")


async def relay(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    requests: AsyncIterator[pb.ConnectRequest],
    context: Context,
) -> None:
    """Hand messages on in both directions until either side hangs up."""
    reader, writer = connection
    try:
        await context.send_initial_metadata(((OPEN_KEY, "true"),))
        async with asyncio.TaskGroup() as group:
            group.create_task(_up(requests, writer))
            group.create_task(_down(reader, context))
    except* (_SessionOverError, ConnectionError):
        pass
    finally:
        writer.close()


async def _up(requests: AsyncIterator[pb.ConnectRequest], writer: asyncio.StreamWriter) -> None:
    async for request in requests:
        writer.write(request.message + b"\n")
        await writer.drain()
    raise _SessionOverError


async def _down(reader: asyncio.StreamReader, context: Context) -> None:
    while line := await reader.readline():
        await context.write(pb.ConnectResponse(message=line.rstrip(b"\n")))
    raise _SessionOverError
