"""Tool servers beside a sandbox that speak streamable HTTP, offered as our own are."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent

from seatrial_sandbox.http_servers import await_tools, http_handler
from seatrial_sandbox.server_spec import MAX_LINE_BYTES
from seatrial_sandbox.transport import Streams, streams

ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def notes() -> MCPServer[None]:
    """A server of somebody else's."""
    server: MCPServer[None] = MCPServer("notes")

    @server.tool()
    def add(text: str) -> str:
        """Write a note down."""
        if not text:
            raise ToolError("a note needs a text")
        return f"noted: {text}"

    @server.tool()
    def picture() -> list[ImageContent]:
        """A picture."""
        return [ImageContent(type="image", data=ONE_PIXEL, mime_type="image/png")]

    return server


@asynccontextmanager
async def served(server: MCPServer[None], listener: socket.socket) -> AsyncIterator[None]:
    """The server on a socket until the block ends."""
    config = uvicorn.Config(server.streamable_http_app(streamable_http_path="/mcp/"), log_level="error", lifespan="on")
    web = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(web.serve(sockets=[listener]))
        yield
        web.should_exit = True


@pytest.fixture
def listener() -> socket.socket:
    """A port of this test's, where nobody listens yet."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}/mcp/"


@asynccontextmanager
async def front(url: str) -> AsyncIterator[Streams]:
    """A client's end of a connection, at whose other end the server is offered."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES)
    async with asyncio.TaskGroup() as group:
        handling = group.create_task(http_handler("notes", url)(theirs))
        read, write = streams(reader, writer)
        async with read:
            yield read, write
        await asyncio.wait([handling], timeout=30)
        assert handling.done(), "the session outlives its connection"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_listed_and_called_in_whatever_version_the_client_speaks(
    listener: socket.socket, mode: str
) -> None:
    async with served(notes(), listener):
        await await_tools(url_of(listener))
        async with Client(front(url_of(listener)), mode=mode, cache=None) as client:
            listed = (await client.list_tools()).tools
            assert {tool.name: tool.description for tool in listed} == {
                "add": "Write a note down.",
                "picture": "A picture.",
            }
            (said,) = (await client.call_tool("add", {"text": "rent"})).content
            assert isinstance(said, TextContent)
            assert said.text == "noted: rent"
            (shown,) = (await client.call_tool("picture")).content
            assert isinstance(shown, ImageContent)
            assert shown.data == ONE_PIXEL


async def test_what_a_server_refuses_reaches_the_client_as_it_was_said(listener: socket.socket) -> None:
    async with served(notes(), listener):
        await await_tools(url_of(listener))
        async with Client(front(url_of(listener)), cache=None) as client:
            refused = await client.call_tool("add", {"text": ""})
            assert refused.is_error
            assert isinstance(refused.content[0], TextContent)
            assert "a note needs a text" in refused.content[0].text


async def test_a_server_is_waited_for_until_it_lists_its_tools(listener: socket.socket) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(await_tools(url_of(listener)))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        async with served(notes(), listener):
            await asyncio.wait_for(waiting, 60)


async def test_without_a_server_there_is_no_session(listener: socket.socket) -> None:
    with listener, pytest.raises((MCPError, ExceptionGroup)):
        async with asyncio.timeout(60), Client(front(url_of(listener)), cache=None):
            pass
