"""Tools of a gateway, which stands for several servers: as Archipelago's was seen to behave."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from mcp.client._memory import InMemoryTransport
from mcp.server import MCPServer

from seatrial_api.clock import Deadline
from seatrial_api.sandboxes import GATEWAY_SERVER
from seatrial_api.spec.harness import ToolResultLimit
from seatrial_rollout.harness.tool_server import Endpoint, await_offers, running
from seatrial_rollout.harness.toolbox import Toolbox


def server(tool: str) -> MCPServer:
    made = MCPServer("made")

    @made.tool(name=tool)
    def read(path: str) -> str:
        """Read a file."""
        return path

    return made


def endpoint(name: str, tool: str) -> Endpoint:
    return Endpoint(name, lambda: InMemoryTransport(server(tool)))


async def test_a_model_knows_a_gateways_tools_by_the_names_that_the_gateway_gave_them() -> None:
    endpoints = [endpoint(GATEWAY_SERVER, "filesystem_server_read"), endpoint("mail", "read")]
    async with running(await await_offers(endpoints, Deadline.after(60))) as servers:
        schemas = Toolbox(servers, ToolResultLimit()).schemas()
    assert [one["function"]["name"] for one in schemas] == ["filesystem_server_read", "mail_read"]


async def test_a_gateway_that_lists_nothing_is_waited_for_as_the_servers_behind_it_are_not_there() -> None:
    answers = [MCPServer("empty"), MCPServer("empty"), server("filesystem_server_read")]

    def connect() -> AbstractAsyncContextManager[Any]:
        return InMemoryTransport(answers.pop(0))

    (offer,) = await await_offers([Endpoint(GATEWAY_SERVER, connect)], Deadline.after(60))
    assert ([tool.name for tool in offer.tools], answers) == (["filesystem_server_read"], [])
