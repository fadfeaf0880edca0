"""What the daemon in a sandbox's pod is told, by whoever makes the pod."""

from typing import Annotated

from pydantic import Field

from seatrial_api.base import ApiModel, Positive

CONFIG_VARIABLE = "SEATRIAL_SANDBOXD"
"""Environment variable with the configuration, as JSON."""
UID_VARIABLE = "SEATRIAL_SANDBOX_UID"
"""Environment variable with the pod's uid, for which tokens are made out; the downward API fills it."""
DEFAULT_PORT = 8091
"""Port of the daemon's gRPC service."""

WRITABLE_FOLDERS = ("/home", "/logs", "/solution", "/tests", "/tmp")  # noqa: S108  the sandbox's own
"""Folders besides the workdir that the daemon's user must be able to write: volumes, where the image's root is not."""


class SandboxServer(ApiModel):
    """An MCP server that the daemon serves itself."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Its name; its tools reach the model as `{name}_{tool}`."""
    command: Annotated[str, Field(min_length=1)]
    """`seatrial-mcp`, or any program that speaks MCP over its standard streams."""
    args: list[str] = Field(default_factory=list)
    """Arguments."""


class HttpServer(ApiModel):
    """An MCP server beside the daemon that speaks streamable HTTP, which the daemon passes sessions on to."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Its name."""
    url: Annotated[str, Field(pattern="^http://", max_length=2048)]
    """Where it answers."""
    starts_with_task: bool = False
    """Whether it answers only once it knows the trial's task, for which the sandbox is ready before."""


class SandboxLimits(ApiModel):
    """What the processes of a sandbox may take, beside the limits of its pod."""

    processes: Positive = 256
    """Processes and threads in all; less than the pod's own limit, so that the daemon can still work."""
    memory_mb: Positive = 4096
    """Private memory of one process, in MiB."""
    file_mb: Positive = 2048
    """Size of one file, in MiB."""
    open_files: Positive = 1024
    """Open files of one process."""


class SandboxdConfig(ApiModel):
    """The daemon's configuration."""

    public_key: Annotated[str, Field(min_length=1)]
    """Ed25519 key that tokens are verified with, as PEM."""
    listen: str = f"0.0.0.0:{DEFAULT_PORT}"
    """Where the service listens: an address and port, or `unix:` and a path."""
    workdir: str = "/workspace"
    """Where the world's files lie and commands start."""
    spool: str = "/tmp"  # noqa: S108  files there have no name
    """Folder for transfers that are under way; they have no name in it."""
    servers: list[SandboxServer | HttpServer] = Field(default_factory=list)
    """MCP servers of phase Agent."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the environment of everything in the sandbox."""
    limits: SandboxLimits = Field(default_factory=SandboxLimits)
    """What its processes may take."""
