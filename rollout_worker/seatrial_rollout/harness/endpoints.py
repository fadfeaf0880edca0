"""How the MCP servers of a Harbor task are reached."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol, runtime_checkable

import httpx2
from harbor.models.task.config import MCPServerConfig
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from seatrial_rollout.harness.errors import ToolServerError
from seatrial_rollout.harness.tool_server import Endpoint


@runtime_checkable
class ConnectsServers(Protocol):
    """A sandbox that runs MCP servers inside and lets them be talked to."""

    def connect(self, server: str) -> AbstractAsyncContextManager[TransportStreams]:
        """An MCP transport to the server of that name in the task."""
        ...


@runtime_checkable
class BringsServers(Protocol):
    """A sandbox that has MCP servers of its own, whether a task declares them as such or not."""

    def has_server(self, name: str) -> bool:
        """Whether one of them has this name."""
        ...


def endpoints(
    servers: Iterable[MCPServerConfig],
    environment: object,
    headers: Mapping[str, Mapping[str, str]],
    *,
    read_seconds: float,
) -> list[Endpoint]:
    """Endpoints of a task's servers: those that the sandbox brings and `stdio` ones inside of it, others at their URL.

    Args:
        servers: The servers as the task declares them.
        environment: The sandbox.
        headers: HTTP headers by server, with their secrets resolved.
        read_seconds: How long an HTTP server may be silent within a call.

    Raises:
        ToolServerError: A server inside a sandbox that cannot be talked to, or with headers that would not reach it.
    """
    found = []
    for server in servers:
        own = dict(headers.get(server.name, {}))
        brought = isinstance(environment, BringsServers) and environment.has_server(server.name)
        if brought or server.transport == "stdio":
            if not isinstance(environment, ConnectsServers):
                problem = f"runs inside the sandbox, and {type(environment).__name__} offers no way to talk to it"
                raise ToolServerError(server=server.name, problem=problem)
            if own:
                problem = f"runs inside the sandbox, where the headers {', '.join(own)} do not reach it; take them away"
                raise ToolServerError(server=server.name, problem=problem)
            found.append(Endpoint(server.name, partial(environment.connect, server.name)))
        else:
            transport = _sse if server.transport == "sse" else _streamable_http
            opening = partial(transport, str(server.url), own, read_seconds)
            found.append(Endpoint(server.name, opening, is_in_sandbox=False))
    return found


def _sse(url: str, headers: dict[str, str], read_seconds: float) -> AbstractAsyncContextManager[TransportStreams]:
    return sse_client(url, headers=headers, sse_read_timeout=read_seconds)


@asynccontextmanager
async def _streamable_http(url: str, headers: dict[str, str], read_seconds: float) -> AsyncIterator[TransportStreams]:
    timeout = httpx2.Timeout(30.0, read=read_seconds)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
