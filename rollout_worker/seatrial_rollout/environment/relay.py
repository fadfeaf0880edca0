"""A session of `sandboxd` as the transport that `mcp.Client` wants."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from grpc import aio

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_sandbox.server_spec import MAX_LINE_BYTES
from seatrial_sandbox.transport import Streams, streams

type SessionCall = aio.StreamStreamCall[pb.ConnectRequest, pb.ConnectResponse]


@asynccontextmanager
async def relayed(call: SessionCall) -> AsyncIterator[Streams]:
    """The messages of a call that is open; when either side ends it, the transport is closed."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=MAX_LINE_BYTES)
    read, write = streams(*await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES))
    async with asyncio.TaskGroup() as group:
        pumps = [group.create_task(_up(reader, call)), group.create_task(_down(call, writer))]
        try:
            async with read:
                yield read, write
        finally:
            call.cancel()
            for pump in pumps:
                pump.cancel()
            writer.close()


async def _up(reader: asyncio.StreamReader, call: SessionCall) -> None:
    with suppress(aio.AioRpcError, asyncio.InvalidStateError, ConnectionError):
        while line := await reader.readline():
            await call.write(pb.ConnectRequest(message=line.rstrip(b"\n")))
        await call.done_writing()


async def _down(call: SessionCall, writer: asyncio.StreamWriter) -> None:
    with suppress(aio.AioRpcError, ConnectionError):
        async for response in call:
            writer.write(response.message + b"\n")
            await writer.drain()
    writer.close()
