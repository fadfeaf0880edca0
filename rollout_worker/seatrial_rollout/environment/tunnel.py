"""Carries connections from a sandbox to one server of ours, and nowhere else."""

import asyncio
from dataclasses import dataclass

from yarl import URL

_CHUNK_BYTES = 1 << 16
_CONNECT_SECONDS = 30.0


@dataclass(slots=True)
class Relay:
    """The way to one server."""

    server_url: str
    num_connections: int = 0
    """Connections so far."""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to the server until both sides have ended.

        Raises:
            OSError: If the server does not answer, or either side breaks off.
        """
        self.num_connections += 1
        server = URL(self.server_url)
        async with asyncio.timeout(_CONNECT_SECONDS):
            far_reader, far_writer = await asyncio.open_connection(server.host, server.port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        except* OSError as errors:
            raise ConnectionError(str(errors.exceptions[0])) from errors
        finally:
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction until its end, which is passed on: the other may go on."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
