"""MCP server `code`: run shell commands in the workspace."""

import os
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.processes import Command, ProcessTable, run
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

TIMEOUT_SECONDS = 300.0
MAX_BYTES = 100_000
_ADVICE = "write long output to a file and read the part you need"


class CodeTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Make the tools.

        Args:
            workspace: Where commands start.
            timeout_seconds: Time after which a command and all its processes are killed.
        """
        self._workspace = workspace
        self._timeout_seconds = timeout_seconds
        self._processes = ProcessTable()

    async def code_exec(
        self, code: Annotated[str, Field(description="Bash commands, as many lines as needed.")]
    ) -> str:
        """Run bash commands in the workspace and return what they print.

        Every call is a new shell that starts in the workspace; files stay, variables do not.
        """
        command = Command(
            argv=["bash", "-c", self._workspace.localise(code)],
            cwd=self._workspace.root,
            env=os.environ,
            timeout_seconds=self._timeout_seconds,
            max_bytes=MAX_BYTES,
            merge_stderr=True,
        )
        try:
            done = await run(command, self._processes)
        except BlockingIOError:
            raise ToolError("too many processes are running; end some of them first") from None
        except ValueError as error:
            raise ToolError(f"this cannot be run: {error}") from None
        output = done.stdout.text(_ADVICE).rstrip("\n")
        if done.timed_out:
            raise ToolError(
                f"{output}\n[killed after {self._timeout_seconds:g} s; run long work in the background or in parts]"
            )
        if done.return_code:
            raise ToolError(f"{output}\n[exit code {done.return_code}]".lstrip())
        return output or "(no output)"


def build(workspace: Workspace, timeout_seconds: float = TIMEOUT_SECONDS) -> ToolServer:
    """The server `code` over a workspace."""
    server = ToolServer("code", "Runs shell commands in the workspace.")
    tools = CodeTools(workspace, timeout_seconds)
    # The command has its own clock and budget; these are only backstops.
    server.expose(
        tools.code_exec,
        timeout_seconds=timeout_seconds + 30,
        max_bytes=MAX_BYTES + 1000,
        max_error_bytes=MAX_BYTES + 1000,
        advice=_ADVICE,
    )
    return server
