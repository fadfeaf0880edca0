"""Serving once what will be served often: what MCP builds lazily is then there, and shared by every fork."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp import Client

from seatrial_sandbox.gateway import mcp_handler
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.transport import Streams, streams


async def warm(server: ToolServer) -> None:
    """Hold one session with a server over a real socket: handshake, list, one call."""
    ours, theirs = socket.socketpair()
    async with asyncio.TaskGroup() as group:
        group.create_task(_serve(server, theirs))
        async with Client(_transport(ours)) as client:
            tools = (await client.list_tools()).tools
            await client.call_tool(tools[0].name, {"no such argument": 0})


async def _serve(server: ToolServer, connection: socket.socket) -> None:
    await mcp_handler(server)(connection)


@asynccontextmanager
async def _transport(connection: socket.socket) -> AsyncIterator[Streams]:
    read, write = streams(*await asyncio.open_unix_connection(sock=connection))
    async with read:
        yield read, write
