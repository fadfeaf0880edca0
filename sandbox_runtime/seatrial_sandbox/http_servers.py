"""MCP servers beside the sandbox that speak streamable HTTP, offered like those that we serve ourselves."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_sandbox.gateway import Handler
from seatrial_sandbox.server_spec import MAX_LINE_BYTES
from seatrial_sandbox.transport import streams

_CONNECT_SECONDS = 30.0
_LOOK_SECONDS = 10.0
_POLL_SECONDS = 0.5


def http_handler(name: str, url: str) -> Handler:
    """Serve an MCP server that is reached by HTTP: a session with it for every connection.

    Both ends negotiate their own version of the protocol; only tools are handed on.
    """

    async def handle(connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE_BYTES)
        read, write = streams(reader, writer)
        async with read, _session(url) as client:
            server = _front(name, client)
            await server.run(read, write, server.create_initialization_options())

    return handle


async def await_tools(url: str, clock: Clock = SYSTEM_CLOCK) -> None:
    """Wait until a server lists its tools, however often it refuses."""
    while True:
        try:
            async with asyncio.timeout(_LOOK_SECONDS), _session(url) as client:
                if (await client.list_tools()).tools:
                    return
        except Exception:  # noqa: BLE001, S110  not yet: whoever waits has a deadline, and says whom it waited for
            pass
        await clock.sleep(_POLL_SECONDS)


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[Client]:
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)  # whoever calls a tool knows how long it may take
    async with (
        httpx2.AsyncClient(timeout=timeout, trust_env=False) as http,  # a world's proxies lead elsewhere
        Client(streamable_http_client(url, http_client=http), cache=None) as client,
    ):
        yield client


def _front(name: str, client: Client) -> Server[Any]:
    """What answers for a server."""

    async def list_tools(_context: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return await client.session.list_tools(params=params)

    async def call_tool(_context: object, params: CallToolRequestParams) -> CallToolResult:
        # Past `Client.call_tool`, which would list the tools again to check results against their output schemas.
        request = CallToolRequest(params=CallToolRequestParams(name=params.name, arguments=params.arguments))
        return await client.session.send_request(request, CallToolResult)

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)
