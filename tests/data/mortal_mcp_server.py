"""An MCP server over stdio that dies when it is told to; its one argument is a folder to remember things in."""

import os
import sys
import threading
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

MEMORY = Path(sys.argv[1])
READ_ONLY = ToolAnnotations(read_only_hint=True)
server = MCPServer("mortal")


@server.tool()
async def die_soon() -> str:
    """Answer, then die."""
    threading.Timer(0.1, os._exit, [1]).start()
    return "soon"


@server.tool()
async def count() -> str:
    """How often this was called, over all processes."""
    calls = MEMORY / "calls"
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    return str(len(calls.read_text()))


@server.tool(annotations=READ_ONLY)
async def read_or_die_once() -> str:
    """Die at the first call ever, answer from then on."""
    died = MEMORY / "died"
    if not died.exists():
        died.touch()
        os._exit(1)
    return "read"


@server.tool(annotations=READ_ONLY)
async def read_and_die() -> str:
    """Die at every call."""
    os._exit(1)


@server.tool()
async def write_and_die() -> str:
    """Die at every call, after something may have changed."""
    os._exit(1)


server.run("stdio")
