"""The process that serves the sandbox's own MCP servers, apart from the daemon: it reads what an agent has written.

    python -m seatrial_sandbox.daemon.tools '{"workdir": ..., "servers": [...], "prefix": ...}'

Each server listens on a socket in the abstract namespace, where no file can be put in its place. It ends with its
standard input.
"""

import json
import logging
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.server_spec import OUR_SERVERS, McpServerSpec

if TYPE_CHECKING:
    from seatrial_sandbox.gateway import Handler


def new_prefix() -> str:
    """What the addresses of one gateway begin with."""
    return f"\0seatrial-{secrets.token_hex(8)}-"


def command(workdir: str, servers: Sequence[McpServerSpec], prefix: str) -> list[str]:
    """The command line that starts a gateway."""
    request = {"workdir": workdir, "prefix": prefix[1:], "servers": [asdict(server) for server in servers]}
    return [sys.executable, "-I", "-m", __name__, json.dumps(request)]


def check(servers: Sequence[McpServerSpec]) -> None:
    """Refuse servers that cannot be served.

    Raises:
        SandboxStartError: If there is no such command, or no such server of ours.
    """
    from seatrial_sandbox.servers import BUILDERS  # noqa: PLC0415  half a second, only where there are servers

    for server in servers:
        if server.url:
            continue
        if server.command == OUR_SERVERS:
            known = server.args[0] if server.args else ""
            if known not in BUILDERS:
                raise SandboxStartError(f"MCP server {server.name!r}: {OUR_SERVERS} has no server {known!r}")
        elif shutil.which(server.command) is None:
            raise SandboxStartError(f"MCP server {server.name!r}: there is no command {server.command!r}")


def main(request: Mapping[str, Any]) -> None:
    """Serve until standard input ends."""
    import asyncio  # noqa: PLC0415  with what it serves

    from seatrial_sandbox.gateway import mcp_handler, process_handler  # noqa: PLC0415
    from seatrial_sandbox.http_servers import http_handler  # noqa: PLC0415
    from seatrial_sandbox.servers import BUILDERS  # noqa: PLC0415
    from seatrial_sandbox.workspace import Workspace  # noqa: PLC0415

    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    cwd = Path(request["workdir"])
    workspace = Workspace(cwd, name=request["workdir"])
    os.chdir(cwd)
    servers = [McpServerSpec(**facts) for facts in request["servers"]]
    handlers: list[tuple[socket.socket, Handler]] = []
    for server in servers:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{request['prefix']}{server.name}")
        listener.listen(64)
        if server.url:
            handlers.append((listener, http_handler(server.name, server.url)))
        elif server.command == OUR_SERVERS:
            handlers.append((listener, mcp_handler(BUILDERS[server.args[0]](workspace))))
        else:
            handlers.append((listener, process_handler([server.command, *server.args], cwd)))
    asyncio.run(_serve(handlers, [server.url for server in servers if server.url and not server.starts_with_task]))


async def _serve(handlers: "list[tuple[socket.socket, Handler]]", beside: list[str]) -> None:
    from seatrial_sandbox.gateway import serve  # noqa: PLC0415
    from seatrial_sandbox.http_servers import await_tools  # noqa: PLC0415

    for url in beside:
        sys.stderr.write(f"waiting until {url} lists its tools\n")  # the last words of a sandbox that waits in vain
        await await_tools(url)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await serve(handlers, [0])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
