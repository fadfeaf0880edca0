"""The other face of a tool server: two tools instead of many, for models whose context is dear."""

import base64
import json
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent
from pydantic import Field

from seatrial_sandbox.apart import Answer, Picture
from seatrial_sandbox.tool_server import ToolServer

_BACKSTOP_SECONDS = 600.0
_BACKSTOP_BYTES = 1024 * 1024


def meta_surface(server: ToolServer) -> ToolServer:
    """A server with `schema`, which tells what a server's tools take, and `do`, which calls one.

    Timeouts, budgets and errors are those of the tools.
    """
    names = ", ".join(server.parameters)

    def schema(
        action: Annotated[str | None, Field(description="One action; all of them, in short, if left out.")] = None,
    ) -> str:
        """Placeholder."""
        if action is None:
            return "\n".join(f"{name}: {server.describe(name).partition(chr(10))[0]}" for name in server.parameters)
        if action not in server.parameters:
            raise ToolError(f"there is no action {action!r}; the actions are: {names}")
        return f"{server.describe(action)}\n{json.dumps(server.parameters[action], ensure_ascii=False)}"

    async def do(
        action: Annotated[str, Field(description="What to do; `schema` lists the actions.")],
        arguments: Annotated[dict[str, Any] | None, Field(description="The action's arguments by name.")] = None,
    ) -> Answer:
        """Placeholder."""
        result = await server.call_tool(action, arguments or {})
        match result:
            case CallToolResult(content=[TextContent(text=text)]):
                return text
            case CallToolResult(content=[ImageContent(data=data, mime_type=media_type)]):
                return Picture(base64.b64decode(data), media_type)
            case _:
                raise ToolError(f"{action} answered with something that cannot be passed on; try another way")

    schema.__doc__ = f"Tell what an action does and takes. Actions: {names}."
    do.__doc__ = f"Do one of these: {names}. Ask `schema` first for what an action takes."
    face = ToolServer(server.name, server.instructions or "", server.libraries)
    face.expose(schema)
    face.expose(do, timeout_seconds=_BACKSTOP_SECONDS, max_bytes=_BACKSTOP_BYTES)
    return face
