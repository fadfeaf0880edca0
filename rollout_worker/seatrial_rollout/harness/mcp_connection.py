"""One connection to an MCP server, held open by a task of its own."""

import asyncio
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    TextContent,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from seatrial_rollout.harness.watched_transport import OpenTransport, WatchedTransport

_CLOSE_SECONDS = 2.0

_FATAL_CODES = frozenset({CONNECTION_CLOSED, INVALID_REQUEST, -INVALID_REQUEST, PARSE_ERROR})
_FATAL_WORDS = (
    "session terminated",
    "timed out while waiting for response",
    "client is not connected",
    "failed to connect",
    "server disconnected",
)


class SessionDiedError(Exception):
    """The MCP session is gone; whether the call ran is not known."""


class ProtocolBrokenError(Exception):
    """The server answered with something that is not MCP."""


def is_fatal(error: MCPError) -> bool:
    """Whether an error says that the session is gone, rather than what a tool or its arguments lack."""
    return error.code in _FATAL_CODES or any(words in error.message.lower() for words in _FATAL_WORDS)


class McpConnection:
    """A client that lives in its own task until `close`.

    MCP's client is a task group: the task that entered it has to leave it, and is cancelled when the transport
    breaks. The agent's loop is not to be cancelled by a broken tool server, so it never enters one.
    """

    def __init__(self, open_transport: OpenTransport) -> None:
        self._transport = WatchedTransport(open_transport)
        self._closing = asyncio.Event()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, tasks: asyncio.TaskGroup, open_transport: OpenTransport, *, version: str = "", seconds: float
    ) -> "McpConnection":
        """Connect and agree on a protocol version, or go on with `version` from an earlier connection.

        Raises:
            TimeoutError: The server did not answer within `seconds`.
            Exception: Whatever the transport or the handshake raised.
        """
        connection = cls(open_transport)
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        connection._task = task = tasks.create_task(connection._keep(ready, version), name="mcp-connection")
        try:
            async with asyncio.timeout(seconds):
                connection._client = await ready
        except BaseException:
            task.cancel()
            raise
        return connection

    @property
    def is_closed(self) -> bool:
        """Whether nothing that is sent now can arrive."""
        return self._client is None or self._transport.has_ended

    @property
    def version(self) -> str:
        """The protocol version that was agreed on."""
        return "" if self._client is None else self._client.protocol_version

    async def close(self) -> None:
        """Leave the client; a transport that does not let go in time is cancelled."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
            self._task.cancel()

    async def list_tools(self) -> list[Tool]:
        """Every tool that the server offers.

        Raises:
            MCPError: The server refused.
        """
        tools: list[Tool] = []
        cursor: str | None = None
        while self._client is not None:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return tools

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool; an error that the server reports comes back as a result with `is_error`.

        Raises:
            TimeoutError: No answer within `seconds`; the server is told to give up.
            SessionDiedError: The session ended before the answer came.
            ProtocolBrokenError: The answer is not MCP.
        """
        if self.is_closed or self._client is None:
            raise SessionDiedError("the connection is closed")
        # Past `Client.call_tool`, which would list the tools again to check results against their output schemas.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(seconds):
                return await self._client.session.send_request(request, CallToolResult)
        except MCPError as exc:
            if is_fatal(exc):
                raise SessionDiedError(exc.message) from exc
            return CallToolResult(content=[TextContent(type="text", text=exc.message)], is_error=True)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:
            if isinstance(exc, TimeoutError):
                raise
            raise SessionDiedError(f"{type(exc).__name__} {exc}".strip()) from exc
        except (ValidationError, ValueError) as exc:
            raise ProtocolBrokenError(str(exc)) from exc

    async def _keep(self, ready: asyncio.Future[Client], version: str) -> None:
        mode = ("auto" if not version else "legacy") if version not in MODERN_PROTOCOL_VERSIONS else version
        try:
            async with Client(self._transport, mode=mode, cache=None) as client:
                ready.set_result(client)
                await self._closing.wait()
        except Exception as exc:  # noqa: BLE001  the root of a task: told to whoever waits, or to the next call
            if not ready.done():
                ready.set_exception(innermost(exc))
        finally:
            self._transport.has_ended = True


def innermost(error: Exception) -> Exception:
    """The one error inside of nested groups, as task groups wrap them."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
