"""An MCP transport that notices when its server hangs up."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from mcp.client._transport import ReadStream, TransportStreams
from mcp.shared.message import SessionMessage

type OpenTransport = Callable[[], AbstractAsyncContextManager[TransportStreams]]
"""Opens a connection to one MCP server: a context manager over its read and write streams."""


class WatchedTransport:
    """Passes everything through and remembers whether the server's side has ended.

    MCP's client fails the calls that are in flight when a server hangs up, and every later one at once, with the
    same error. Only by watching the stream can a call that surely never left be told from one that may have run.
    """

    def __init__(self, open_transport: OpenTransport) -> None:
        self._open_transport = open_transport
        self._transport: AbstractAsyncContextManager[TransportStreams] | None = None
        self.has_ended = False

    async def __aenter__(self) -> TransportStreams:
        self._transport = self._open_transport()
        reads, writes = await self._transport.__aenter__()
        return _WatchedReads(reads, self._end), writes

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.has_ended = True
        return None if self._transport is None else await self._transport.__aexit__(exc_type, exc, traceback)

    def _end(self) -> None:
        self.has_ended = True


class _WatchedReads:
    def __init__(self, stream: ReadStream[SessionMessage | Exception], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc, traceback)
