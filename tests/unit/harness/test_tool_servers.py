"""MCP servers that are missing, late, silent, dying: real servers, in memory and as processes."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client._memory import InMemoryTransport
from mcp.client.stdio import stdio_client
from mcp.server import MCPServer
from mcp_types import CallToolResult, Tool, ToolAnnotations

from seatrial_api.clock import Deadline
from seatrial_rollout.harness.errors import SandboxFailedError, ToolServerError
from seatrial_rollout.harness.tool_server import Endpoint, ToolServer, await_offers, running
from seatrial_sandbox.errors import SandboxDiedError, SandboxError

MORTAL = Path(__file__).parents[2] / "data" / "mortal_mcp_server.py"


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    return str(getattr(block, "text", block))


def mortal(folder: Path) -> Endpoint:
    """A server process that dies when it is told to, and remembers in `folder` that it has."""
    parameters = StdioServerParameters(command=sys.executable, args=[str(MORTAL), str(folder)])
    return Endpoint("mortal", lambda: stdio_client(parameters))


@asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[tuple[ToolServer, dict[str, Tool]]]:
    """The server behind an endpoint, found ready."""
    (offer,) = await await_offers([endpoint], Deadline.after(30))
    async with running([offer]) as (server,):
        yield server, {tool.name: tool for tool in server.tools}


def failing(error: Exception) -> Endpoint:
    """A server that cannot be connected to."""

    def connect() -> AbstractAsyncContextManager[Any]:
        raise error

    return Endpoint("mail", connect)


@pytest.mark.parametrize("error", [KeyError("mail"), SandboxError("there is no MCP server 'mail'")])
async def test_a_server_that_the_sandbox_does_not_have_is_a_fault_at_once(error: Exception) -> None:
    with pytest.raises(ToolServerError, match=r"MCP server mail: is missing: .*mail"):
        await await_offers([failing(error)], Deadline.after(30))


async def test_a_sandbox_that_has_died_is_to_blame_itself() -> None:
    with pytest.raises(SandboxFailedError, match="it is gone"):
        await await_offers([failing(SandboxDiedError("it is gone"))], Deadline.after(30))


async def test_a_sandbox_that_dies_under_a_call_is_to_blame_itself(tmp_path: Path) -> None:
    living = mortal(tmp_path).open_transport
    connections = iter([living, living, failing(SandboxDiedError("it is gone")).open_transport])

    def connect() -> AbstractAsyncContextManager[Any]:
        return next(connections)()

    async with connected(Endpoint("mortal", connect)) as (server, tools):
        with pytest.raises(SandboxFailedError, match="it is gone"):
            await server.call(tools["write_and_die"], {}, 20)


async def test_a_server_that_refuses_connections_is_a_fault_at_the_deadline() -> None:
    with pytest.raises(ToolServerError, match="mail: not ready in time: ConnectionRefusedError: nobody listens"):
        await await_offers([failing(ConnectionRefusedError("nobody listens"))], Deadline.after(0.2))


@asynccontextmanager
async def silent() -> AsyncIterator[Any]:
    """A transport whose other end reads and never answers."""
    to_client, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_client = anyio.create_memory_object_stream[Any](10)
    with to_client, from_server, to_server, from_client:
        yield from_server, to_server


async def test_a_server_that_never_answers_is_a_fault_at_the_deadline() -> None:
    with pytest.raises(ToolServerError, match="mail: not ready in time: it does not answer"):
        await await_offers([Endpoint("mail", silent)], Deadline.after(0.2))


async def test_a_server_that_is_late_is_waited_for(office: MCPServer) -> None:
    attempts: list[int] = []

    def connect() -> AbstractAsyncContextManager[Any]:
        attempts.append(1)
        if len(attempts) < 3:
            raise FileNotFoundError("no socket yet")
        return InMemoryTransport(office)

    (offer,) = await await_offers([Endpoint("office", connect)], Deadline.after(30))
    assert [tool.name for tool in offer.tools] == ["lookup", "fail", "print_text"]


async def test_a_call_after_the_server_died_goes_to_a_new_one(tmp_path: Path) -> None:
    async with connected(mortal(tmp_path)) as (server, tools):
        await server.call(tools["die_soon"], {}, 20)
        await until_closed(server)
        assert text_of(await server.call(tools["count"], {}, 20)) == "1"


async def until_closed(server: ToolServer) -> None:
    """Wait until the server's hanging up has been noticed."""
    deadline = Deadline.after(10)
    while server._connection is not None and not server._connection.is_closed:
        deadline.check("the server to hang up")
        await deadline.clock.sleep(0.01)


async def test_a_call_that_died_under_way_is_repeated_if_the_tool_says_that_it_may_be(tmp_path: Path) -> None:
    async with connected(mortal(tmp_path)) as (server, tools):
        assert text_of(await server.call(tools["read_or_die_once"], {}, 20)) == "read"


async def test_a_call_that_died_under_way_is_a_fault_if_it_may_have_changed_something(tmp_path: Path) -> None:
    async with connected(mortal(tmp_path)) as (server, tools):
        with pytest.raises(ToolServerError, match="mortal: the session died while write_and_die ran"):
            await server.call(tools["write_and_die"], {}, 20)


async def test_a_server_that_dies_again_is_a_fault(tmp_path: Path) -> None:
    async with connected(mortal(tmp_path)) as (server, tools):
        with pytest.raises(ToolServerError, match="mortal: the session died again in read_and_die"):
            await server.call(tools["read_and_die"], {}, 20)


async def test_a_hanging_call_times_out_and_leaves_the_session_alive() -> None:
    server = MCPServer("slow")

    @server.tool()
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def ping() -> str:
        return "pong"

    async with connected(Endpoint("slow", lambda: InMemoryTransport(server))) as (slow, tools):
        with pytest.raises(TimeoutError):
            await slow.call(tools["hang"], {}, 0.1)
        assert text_of(await slow.call(tools["ping"], {}, 5)) == "pong"


async def test_an_error_of_the_protocol_that_is_not_fatal_is_an_answer(office: MCPServer) -> None:
    async with connected(Endpoint("office", lambda: InMemoryTransport(office))) as (server, tools):
        renamed = tools["lookup"].model_copy(update={"name": "gone"})
        result = await server.call(renamed, {}, 5)
    assert result.is_error
    assert "gone" in text_of(result)


async def test_an_error_inside_of_the_block_comes_out_as_it_is(office: MCPServer) -> None:
    async def fail() -> None:
        async with connected(Endpoint("office", lambda: InMemoryTransport(office))) as (server, tools):
            await server.call(tools["lookup"], {"row": "lamp"}, 5)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await fail()


async def test_a_transport_that_does_not_let_go_is_cancelled(office: MCPServer) -> None:
    @asynccontextmanager
    async def clinging() -> AsyncIterator[Any]:
        async with InMemoryTransport(office) as streams:
            try:
                yield streams
            finally:
                await asyncio.Event().wait()

    (offer,) = await await_offers([Endpoint("office", clinging)], Deadline.after(30))
    assert len(offer.tools) == 3
