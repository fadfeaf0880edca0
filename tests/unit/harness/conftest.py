"""A model folder, and trials of the archipelago harness against real MCP servers in memory."""

import asyncio
from pathlib import Path

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tests.agents import Harness
from tests.chat_models import FAMILIES, ChatModel, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return ChatModel(FAMILIES["qwen3"], write_model(FAMILIES["qwen3"], tmp_path_factory.mktemp("qwen3")))


@pytest.fixture
def harness(model: ChatModel, tmp_path: Path) -> Harness:
    return Harness(model, tmp_path)


@pytest.fixture
def office() -> MCPServer:
    """A server with a few tools."""
    server = MCPServer("office")

    @server.tool()
    def lookup(row: str, column: str = "price") -> str:
        return f"{row} {column}: 7"

    @server.tool()
    def fail(reason: str) -> str:
        raise ToolError(reason)

    @server.tool()
    def print_text(length: int) -> str:
        return "a" * (length // 2) + "z" * (length - length // 2)

    return server


@pytest.fixture
def hanging() -> MCPServer:
    """A server that never answers."""
    server = MCPServer("slow")

    @server.tool()
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    return server
