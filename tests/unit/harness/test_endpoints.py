"""Reaching MCP servers inside of a sandbox and over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import uvicorn
from harbor.models.task.config import MCPServerConfig
from mcp.server import MCPServer
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from seatrial_api.clock import Deadline
from seatrial_rollout.harness.endpoints import endpoints
from seatrial_rollout.harness.errors import ToolServerError
from seatrial_rollout.harness.tool_server import await_offers, running
from tests.agents import MemorySandbox


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """An ASGI application at an address of its own, until the block ends."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server.serve())
        deadline = Deadline.after(20)
        while not server.started and not task.done():
            deadline.check("uvicorn to start")
            await deadline.clock.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True


def guarded(app: Any) -> Any:
    """The application behind a bearer token."""

    async def check(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and Request(scope).headers.get("authorization") != "Bearer s3cret":
            refusal: Response = PlainTextResponse("no", 401)
            await refusal(scope, receive, send)
            return
        await app(scope, receive, send)

    return check


@pytest.mark.parametrize(
    ("transport", "path"), [("streamable-http", "/mcp"), ("sse", "/sse")], ids=["streamable http", "sse"]
)
async def test_a_server_at_a_url_is_called_with_its_headers(
    office: MCPServer, transport: Literal["sse", "streamable-http"], path: str
) -> None:
    app = office.streamable_http_app() if transport == "streamable-http" else office.sse_app()
    async with served(guarded(app)) as address:
        config = MCPServerConfig(name="office", transport=transport, url=address + path)
        headers = {"office": {"Authorization": "Bearer s3cret"}}
        found = endpoints([config], MemorySandbox({}), headers, read_seconds=30)
        (offer,) = await await_offers(found, Deadline.after(20))
        async with running([offer]) as (server,):
            result = await server.call(server.tools[0], {"row": "lamp"}, 20)
    assert getattr(result.content[0], "text", "") == "lamp price: 7"


class PodLike(MemorySandbox):
    """A sandbox that has servers of its own."""

    def has_server(self, name: str) -> bool:
        """Whether it is one of them."""
        return name in self.servers


async def test_a_server_that_the_sandbox_brings_is_reached_there_whatever_the_task_says(office: MCPServer) -> None:
    sandbox = PodLike({"office": office})
    configs = [
        MCPServerConfig(name="office", transport="streamable-http", url="http://127.0.0.1:9/mcp"),
        MCPServerConfig(name="office", transport="stdio", command="office"),
    ]
    for config in configs:
        found = endpoints([config], sandbox, {}, read_seconds=30)
        (offer,) = await await_offers(found, Deadline.after(20))
        async with running([offer]) as (server,):
            result = await server.call(server.tools[0], {"row": "lamp"}, 20)
        assert getattr(result.content[0], "text", "") == "lamp price: 7"
        assert found[0].is_in_sandbox


def test_headers_that_would_not_reach_a_server_in_the_sandbox_are_a_fault(office: MCPServer) -> None:
    config = MCPServerConfig(name="office", transport="streamable-http", url="http://127.0.0.1:9/mcp")
    headers = {"office": {"Authorization": "Bearer s3cret"}}
    with pytest.raises(ToolServerError, match="office: runs inside the sandbox, where the headers Authorization do"):
        endpoints([config], PodLike({"office": office}), headers, read_seconds=30)


async def test_a_server_that_refuses_the_headers_is_a_fault(office: MCPServer) -> None:
    async with served(guarded(office.streamable_http_app())) as address:
        config = MCPServerConfig(name="office", transport="streamable-http", url=address + "/mcp")
        found = endpoints([config], MemorySandbox({}), {}, read_seconds=30)
        with pytest.raises(ToolServerError, match="office: not ready in time"):
            await await_offers(found, Deadline.after(0.3))


def test_a_sandbox_that_offers_no_way_in_cannot_run_stdio_servers() -> None:
    config = MCPServerConfig(name="office", transport="stdio", command="office")
    with pytest.raises(ToolServerError, match="runs inside the sandbox, and object offers no way to talk to it"):
        endpoints([config], object(), {}, read_seconds=30)
