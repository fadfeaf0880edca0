"""Real sandboxes for the tests; hostile ones only where namespaces hold them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from seatrial_rollout.environment.isolation import Isolation
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.server_spec import McpServerSpec

type StartSandbox = Callable[..., Awaitable[LocalSandbox]]
type CallTool = Callable[..., Awaitable[tuple[bool, str]]]

SERVERS = [McpServerSpec(name, "seatrial-mcp", [name]) for name in ("filesystem", "sheets", "code")]


@pytest.fixture
async def start_sandbox(tmp_path: Path) -> AsyncIterator[StartSandbox]:
    """Starts isolated sandboxes, and stops them after the test."""
    async with AsyncExitStack() as stack:

        async def start(
            name: str = "sandbox",
            servers: list[McpServerSpec] = SERVERS,
            limits: Limits | None = None,
            env: dict[str, str] | None = None,
        ) -> LocalSandbox:
            try:
                sandbox = await LocalSandbox.start(
                    tmp_path / name, servers, limits=limits or Limits(), env=env, isolation=Isolation.BUBBLEWRAP
                )
            except SandboxStartError as error:
                if "bubblewrap" in str(error) or "no sandbox can be started" in str(error):
                    pytest.skip(str(error))
                raise
            stack.push_async_callback(sandbox.stop)
            return sandbox

        yield start


@pytest.fixture
async def isolated(start_sandbox: StartSandbox) -> LocalSandbox:
    """A sandbox in namespaces, with our three MCP servers."""
    return await start_sandbox()


@pytest.fixture(params=[Isolation.BUBBLEWRAP, Isolation.PLAIN])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalSandbox]:
    """A sandbox of either kind: nothing hostile may run in it."""
    try:
        started = await LocalSandbox.start(tmp_path / "sandbox", SERVERS, isolation=request.param)
    except SandboxStartError as error:
        pytest.skip(str(error))
    yield started
    await started.stop()


@pytest.fixture
def call() -> CallTool:
    """Calls a tool in a session of its own: whether it failed, and its text."""

    async def call_tool(sandbox: LocalSandbox, server: str, tool: str, **arguments: object) -> tuple[bool, str]:
        async with Client(sandbox.connect(server)) as client:
            result = await client.call_tool(tool, arguments)
        return outcome(result)

    return call_tool


def outcome(result: CallToolResult) -> tuple[bool, str]:
    """Whether a call failed, and its text."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return result.is_error, content.text
