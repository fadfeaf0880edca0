"""Which MCP servers a sandbox offers."""

from dataclasses import dataclass, field

OUR_SERVERS = "seatrial-mcp"
"""Command whose servers are served without a process of their own."""

SERVER_KEY = "seatrial-server"
"""Metadata of a call that begins a session, with the server's name."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest message of an MCP session; a peer that sends more is cut off."""


@dataclass(frozen=True, slots=True)
class McpServerSpec:
    """An MCP server of a sandbox."""

    name: str
    command: str = ""
    args: list[str] = field(default_factory=list)
    url: str = ""
    """Where it speaks streamable HTTP already; it has no command then."""
    starts_with_task: bool = False
    """Whether it does so only once it was told the trial's task."""

    @property
    def socket(self) -> str:
        """File name of its socket."""
        return f"mcp-{self.name}.sock"
