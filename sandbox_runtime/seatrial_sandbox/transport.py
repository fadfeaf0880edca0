"""MCP over a stream socket: one JSON-RPC message a line, as over stdio."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

from seatrial_sandbox.server_spec import MAX_LINE_BYTES


class _Stream:
    """What both directions share: closing either end closes the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def aclose(self) -> None:
        """Close the connection once what was sent is out; does not wait for that."""
        self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class LineReader(_Stream):
    """The messages that the peer sends; an unreadable line is handed on as its error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self._reader = reader

    async def receive(self) -> SessionMessage | Exception:
        """The next message.

        Raises:
            anyio.EndOfStream: If the peer closed the connection.
        """
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):  # ValueError: longer than the limit
            line = b""
        if not line:
            raise anyio.EndOfStream
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValidationError as error:
            return error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class LineWriter(_Stream):
    """Sends messages to the peer."""

    async def send(self, item: SessionMessage) -> None:
        """Send one message.

        Raises:
            anyio.BrokenResourceError: If the peer is gone.
        """
        try:
            self._writer.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:  # RuntimeError: the transport is closed
            raise anyio.BrokenResourceError from error


type Streams = tuple[LineReader, LineWriter]


def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Streams:
    """The two directions of one connection as MCP wants them."""
    return LineReader(reader, writer), LineWriter(writer)


@asynccontextmanager
async def connect_unix(path: Path) -> AsyncIterator[Streams]:
    """A client's transport to an MCP server on a Unix socket; hand it to `mcp.Client`.

    Raises:
        OSError: If nobody listens there.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
    read, write = streams(reader, writer)
    async with read:
        yield read, write
