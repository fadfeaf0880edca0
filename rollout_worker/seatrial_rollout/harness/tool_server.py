"""The MCP servers of a trial: found ready, called, reconnected once, given up with a named fault."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp_types import CallToolResult, TextContent, Tool

from seatrial_api.clock import Deadline
from seatrial_api.errors import SeatrialError, TransientError
from seatrial_rollout.harness.errors import CallLostError, SandboxFailedError, ToolServerError
from seatrial_rollout.harness.mcp_connection import McpConnection, ProtocolBrokenError, SessionDiedError
from seatrial_rollout.harness.tool_source import shown_name
from seatrial_rollout.harness.watched_transport import OpenTransport
from seatrial_sandbox.errors import SandboxDiedError

_ATTEMPT_SECONDS = 60.0
_CONNECT_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0

type ToolSeconds = Callable[[str], float | None]
"""Time that a call of a tool may take, by the name that the model knows it by; none if it has no limit of its own."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an MCP server is reached."""

    server: str
    open_transport: OpenTransport
    is_in_sandbox: bool = True
    """Whether it dies with the sandbox."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an MCP server offered when it was found ready."""

    endpoint: Endpoint
    tools: list[Tool]
    version: str
    """Protocol version that it speaks."""


class ToolServer:
    """One MCP server while the agent runs: connected at the first call, and connected anew at most once."""

    def __init__(self, offer: Offer, tasks: asyncio.TaskGroup, tool_seconds: ToolSeconds = lambda _name: None) -> None:
        self._offer = offer
        self._tasks = tasks
        self._tool_seconds = tool_seconds
        self._connection: McpConnection | None = None
        self._has_reconnected = False

    @property
    def name(self) -> str:
        """The server's name in the task."""
        return self._offer.endpoint.server

    @property
    def tools(self) -> list[Tool]:
        """The tools that it offers."""
        return self._offer.tools

    @property
    def is_in_sandbox(self) -> bool:
        """Whether it dies with the sandbox."""
        return self._offer.endpoint.is_in_sandbox

    async def call(self, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool, and answer for it when a time that it has of its own is over.

        A call that cannot have left, because the session had ended before, is sent over a new one. A call that was
        under way when the session died is sent again only if the tool says that it may be; otherwise nobody knows
        whether it ran, and a world that may or may not have changed is no ground to grade on.

        Raises:
            TimeoutError: No answer within `seconds`.
            CallLostError: The session died under a call that may not be repeated.
            ToolServerError: The session died beyond repair, or the server broke the protocol.
            SandboxFailedError: The whole sandbox is gone.
        """
        name = shown_name(self.name, tool.name)
        own = self._tool_seconds(name)
        if own is None or own >= seconds:
            return await self._call(tool, arguments, seconds)
        try:
            return await self._call(tool, arguments, own)
        except TimeoutError:
            text = f"no answer within {own:g} s, the most that a call of {name} may take; it was given up"
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)

    async def _call(self, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        connection = await self._living_connection()
        try:
            return await connection.call(tool.name, arguments, seconds)
        except SessionDiedError as death:
            # Also where the call is not repeated: whether the sandbox still answers tells whose fault it is.
            connection = await self._living_connection()
            if not may_repeat(tool):
                problem = f"the session died while {tool.name} ran, which cannot be repeated safely ({death})"
                raise CallLostError(server=self.name, problem=problem) from death
        except ProtocolBrokenError as exc:
            raise ToolServerError(server=self.name, problem=f"{tool.name} answered outside of MCP: {exc}") from exc
        try:
            return await connection.call(tool.name, arguments, seconds)
        except (SessionDiedError, ProtocolBrokenError) as death:
            problem = f"the session died again in {tool.name} after a reconnection ({death})"
            raise ToolServerError(server=self.name, problem=problem) from death

    async def let_go(self) -> None:
        """Forget a server that is gone with its sandbox: another one of the same name has taken its place."""
        await self.close()
        self._connection = None
        self._has_reconnected = False

    async def offered_again(self, deadline: Deadline) -> list[Tool]:
        """The tools that it offers in another sandbox, once it is ready there.

        Raises:
            ToolServerError: It was not ready by the deadline.
            SandboxFailedError: That sandbox is gone, too.
        """
        (offer,) = await await_offers([self._offer.endpoint], deadline)
        return offer.tools

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            await self._connection.close()

    async def _living_connection(self) -> McpConnection:
        if self._connection is not None:
            if not self._connection.is_closed:
                return self._connection
            await self._connection.close()
            if self._has_reconnected:
                raise ToolServerError(server=self.name, problem="the session ended again after a reconnection")
            self._has_reconnected = True
        try:
            self._connection = await McpConnection.open(
                self._tasks,
                self._offer.endpoint.open_transport,
                version=self._offer.version,
                seconds=_CONNECT_SECONDS,
            )
        except SandboxDiedError as exc:
            raise SandboxFailedError(str(exc)) from exc
        except Exception as exc:
            raise ToolServerError(server=self.name, problem=f"cannot be reached: {_say(exc)}") from exc
        return self._connection


def may_repeat(tool: Tool) -> bool:
    """Whether the tool declares that a second call does no harm."""
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


@asynccontextmanager
async def running(
    offers: Iterable[Offer], tool_seconds: ToolSeconds = lambda _name: None
) -> AsyncIterator[list[ToolServer]]:
    """The servers behind `offers`, until the block ends."""
    async with _tasks() as tasks:
        servers = [ToolServer(offer, tasks, tool_seconds) for offer in offers]
        try:
            yield servers
        finally:
            for server in servers:
                await server.close()


async def await_offers(endpoints: Iterable[Endpoint], deadline: Deadline) -> list[Offer]:
    """Wait until every server lists its tools; one that lists none is not ready.

    Raises:
        ToolServerError: A server is missing, or was not ready by the deadline.
        SandboxFailedError: The sandbox is gone.
    """
    async with _tasks() as tasks:
        return [await _await_offer(endpoint, tasks, deadline) for endpoint in endpoints]


async def _await_offer(endpoint: Endpoint, tasks: asyncio.TaskGroup, deadline: Deadline) -> Offer:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await _ask(endpoint, tasks, min(_ATTEMPT_SECONDS, deadline.remaining))
        except SandboxDiedError as exc:
            raise SandboxFailedError(str(exc)) from exc
        except Exception as exc:
            if isinstance(exc, LookupError | SeatrialError) and not isinstance(exc, TransientError):
                raise ToolServerError(server=endpoint.server, problem=f"is missing: {exc}") from exc
            if deadline.remaining <= pause:
                raise ToolServerError(server=endpoint.server, problem=f"not ready in time: {_say(exc)}") from exc
        await deadline.clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _ask(endpoint: Endpoint, tasks: asyncio.TaskGroup, seconds: float) -> Offer:
    connection = await McpConnection.open(tasks, endpoint.open_transport, seconds=seconds)
    try:
        async with asyncio.timeout(seconds):
            tools = await connection.list_tools()
        if not tools:  # what a gateway answers while the servers behind it do not
            raise TransientError("it lists no tools")
        return Offer(endpoint, tools, connection.version)
    finally:
        await connection.close()


@asynccontextmanager
async def _tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that lets the block's own error through as it is; its tasks never raise."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as group:
        raise group.exceptions[0] from group.exceptions[0].__cause__


def _say(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return f"{type(error).__name__}: {error}"
