"""A port on the sandbox's own loopback whose connections the caller serves: all of them in the segments of one call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_sandbox.daemon.admission import Context

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_MAX_CONNECTIONS = 1024
"""Open at once; more are closed at once."""


async def listen(requests: AsyncIterator[pb.ListenRequest], context: Context) -> None:
    """Open a port, tell its number, and carry its connections until the caller hangs up."""
    port = _Port(context)
    server = await asyncio.start_server(port.accept, _HOST, 0)
    try:
        await context.write(pb.ListenResponse(port=server.sockets[0].getsockname()[1]))
        async for request in requests:
            await port.answer(request.segment)
    finally:
        server.close()
        port.close()


@dataclass(slots=True)
class _Port:
    """The connections of one port, by number."""

    context: Context
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _writers: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A call takes one message at a time."""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell of a connection from inside and what comes in on it, to its end; the answer's end closes it."""
        if len(self._writers) >= _MAX_CONNECTIONS:
            writer.close()
            return
        number = next(self._numbers)
        self._writers[number] = writer
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with suppress(asyncio.CancelledError):  # the call has ended
            await self._tell(pb.ListenResponse(opened=number))
            data = b"-"
            while data:
                try:
                    data = await reader.read(_CHUNK_BYTES)
                except OSError:
                    data = b""
                await self._tell(pb.ListenResponse(segment=pb.Segment(connection=number, data=data)))

    async def answer(self, segment: pb.Segment) -> None:
        """Hand on what the caller says."""
        writer = self._writers.get(segment.connection)
        if writer is None:
            return
        with suppress(OSError):
            if segment.data:
                writer.write(segment.data)
                await writer.drain()
                return
        del self._writers[segment.connection]
        writer.close()

    async def _tell(self, response: pb.ListenResponse) -> None:
        async with self._writing:
            await self.context.write(response)

    def close(self) -> None:
        """Close every connection, without waiting: whoever ends a call cancels what it still does."""
        for task in self._tasks:
            task.cancel()
        for writer in self._writers.values():
            writer.close()
