"""A port of a remote sandbox that we serve: its connections come as segments of one call."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from grpc import aio

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_rollout.environment.loopback import Connections, Serve

_CHUNK_BYTES = 1 << 16

type ListenCall = aio.StreamStreamCall[pb.ListenRequest, pb.ListenResponse]


@asynccontextmanager
async def serving(call: ListenCall, serve: Serve) -> AsyncIterator[None]:
    """Serve the connections of a call that is open while the block runs; then end it, and with it the port."""
    async with asyncio.TaskGroup() as group, Connections(serve) as connections:
        demultiplexing = group.create_task(_Segments(call, connections, group).carry())
        try:
            yield
        finally:
            call.cancel()
            demultiplexing.cancel()


@dataclass(slots=True)
class _Segments:
    """One call, and a socket pair for each connection that it carries."""

    call: ListenCall
    connections: Connections
    group: asyncio.TaskGroup
    _writers: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A call takes one message at a time."""

    async def carry(self) -> None:
        """Take segments until the call ends, then close every connection."""
        try:
            with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                while isinstance(response := await self.call.read(), pb.ListenResponse):
                    if response.opened:
                        self._writers[response.opened] = await self._open(response.opened)
                    else:
                        await self._take(response.segment)
        finally:
            for writer in self._writers.values():
                writer.close()

    async def _take(self, segment: pb.Segment) -> None:
        writer = self._writers[segment.connection]
        with suppress(OSError):
            if segment.data:
                writer.write(segment.data)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()

    async def _open(self, number: int) -> asyncio.StreamWriter:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        self.group.create_task(self._send(number, reader))
        self.group.create_task(self.connections.serve(*await asyncio.open_connection(sock=theirs)))
        return writer

    async def _send(self, number: int, reader: asyncio.StreamReader) -> None:
        """Send what a connection is answered, to its end."""
        data = b"-"
        while data:
            with suppress(OSError):
                data = await reader.read(_CHUNK_BYTES)
            with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                async with self._writing:
                    await self.call.write(pb.ListenRequest(segment=pb.Segment(connection=number, data=data)))
