"""The real tools of a sandbox, laid out over one office after another in this process.

The clerk works through the harness's own parser and toolbox and the sandbox's own MCP servers, so every word it reads
is the word that the policy will read.
"""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from mcp.client._memory import InMemoryTransport
from office.world import Office

from seatrial_api.clock import Deadline
from seatrial_api.spec.harness import ToolResultLimit
from seatrial_rollout.harness.tool_server import Endpoint, await_offers, running
from seatrial_rollout.harness.toolbox import Toolbox
from seatrial_rollout.tito.call_formats import PARSERS
from seatrial_rollout.tito.template import ToolSchema
from seatrial_sandbox.servers import BUILDERS
from seatrial_sandbox.workspace import Workspace
from warm_start.clerk import Observation

SERVERS = ("filesystem", "sheets", "code")
"""In the order in which `task.toml` names them, which is the order in which the policy sees the tools."""
_CALL_SECONDS = 60.0
_MAX_EXCERPT = 200


class RealDesk:
    """Tools over one folder, whose office is replaced from task to task."""

    def __init__(self, root: Path, toolbox: Toolbox) -> None:
        self._root = root
        self._toolbox = toolbox

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools as the policy's chat template gets them."""
        return self._toolbox.schemas()

    def furnish(self, office: Office) -> None:
        """Clear the folder and lay out an office."""
        shutil.rmtree(self._root, ignore_errors=True)
        office.write(self._root)

    async def answer(self, turn: str) -> Observation:
        """Make the call that an assistant's turn asks for."""
        parsed = PARSERS["hermes"](turn, self.tools)
        for fault in parsed.faults:  # in the words of `ReActLoop`; a test holds the two together
            excerpt = fault.text if len(fault.text) <= _MAX_EXCERPT else f"{fault.text[:_MAX_EXCERPT]}..."
            return Observation(f"Error: this tool call was not made: {fault.problem}.\n{excerpt}", is_error=True)
        (call,) = parsed.calls
        made = await self._toolbox.call(call, _CALL_SECONDS)
        return Observation(made.result, made.is_error)


@asynccontextmanager
async def open_desk(root: Path) -> AsyncIterator[RealDesk]:
    """Start the servers in this process, until the block ends."""
    workspace = Workspace(root)
    endpoints = [Endpoint(name, partial(InMemoryTransport, BUILDERS[name](workspace))) for name in SERVERS]
    offers = await await_offers(endpoints, Deadline.after(60.0))
    async with running(offers) as servers:
        yield RealDesk(root, Toolbox(servers, ToolResultLimit()))
