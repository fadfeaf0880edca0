"""What a trial's tools come from: an MCP server, or the harness itself."""

from typing import Any, Protocol

from mcp_types import CallToolResult, Tool

from seatrial_api.clock import Deadline
from seatrial_api.sandboxes import GATEWAY_SERVER


class ToolSource(Protocol):
    """Some tools under one name."""

    @property
    def name(self) -> str:
        """Its name in the task."""
        ...

    @property
    def tools(self) -> list[Tool]:
        """The tools that it offers."""
        ...

    @property
    def is_in_sandbox(self) -> bool:
        """Whether what its tools do is lost with the sandbox."""
        ...

    async def call(self, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool.

        Raises:
            TimeoutError: No answer within `seconds`.
            HarnessError: It, or the sandbox around it, cannot be used any more.
        """
        ...

    async def let_go(self) -> None:
        """Forget a sandbox that is gone: another one takes its place."""
        ...

    async def offered_again(self, deadline: Deadline) -> list[Tool]:
        """The tools that it offers in another sandbox.

        Raises:
            HarnessError: None by the deadline, or that sandbox is gone too.
        """
        ...


def shown_name(source: str, tool: str) -> str:
    """The name that the model knows a tool by; a gateway has named its own so already."""
    return tool if source == GATEWAY_SERVER else f"{source}_{tool}"
