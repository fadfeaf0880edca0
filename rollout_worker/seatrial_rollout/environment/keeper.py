"""The keeper: the one process per sandbox that holds it together and serves what it offers.

Forked from the zygote, with everything loaded. It listens on the sandbox's sockets, starts bubblewrap, goes inside and
serves until its owner hangs up or the sandbox dies; with it, the sandbox ends.
"""

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.enclosure import Enclosure
from seatrial_rollout.environment.isolation import INSIDE_UID, Means, bwrap_arguments, identity_files
from seatrial_rollout.environment.loopback import offer_port
from seatrial_rollout.environment.protocol import COMMANDS, PORTS, SANDBOX_VARIABLE, SOCKETS, KeeperRequest, SandboxUp
from seatrial_rollout.environment.warden import Warden, told
from seatrial_sandbox.errors import SandboxLimitError, SandboxStartError
from seatrial_sandbox.gateway import Handler, command_handler, mcp_handler, process_handler, serve
from seatrial_sandbox.layout import HOME, Layout
from seatrial_sandbox.privileges import become_subreaper, drop_to_reader
from seatrial_sandbox.processes import ProcessTable
from seatrial_sandbox.server_spec import OUR_SERVERS, McpServerSpec
from seatrial_sandbox.syscalls import filter_calls
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_FIRST_UID = 1 << 30
"""Users from here on are nobody else's."""


@dataclass(slots=True)
class Preloaded:
    """What the zygote has ready."""

    workspace: Workspace
    servers: Mapping[str, ToolServer]
    table: ProcessTable
    means: Means


def keep(request: KeeperRequest, owner: socket.socket, ready: Preloaded) -> None:
    """Bring a sandbox up, tell its owner, and serve until it ends.

    Raises:
        SandboxStartError: If the sandbox cannot be brought up.
    """
    layout = Layout(Path(request.root), request.workdir)
    uid = _user(request, ready.means)
    if ready.means is Means.PLAIN and uid is not None and not _can_work_as(uid, layout.root):
        uid = None  # a container's root, who may not become anybody, or whose files nobody else can reach
    _make_folders(layout, request.phase, uid)
    listeners = _listen(request)
    lifelines = [owner.fileno()]
    enclosure = None
    if ready.means is Means.PLAIN:
        cwd = layout.folders(request.phase)[request.workdir]
        env = _environment(request, home=str(layout.folders(request.phase)[HOME]))
        env[SANDBOX_VARIABLE] = request.root  # by which its processes are found, should the keeper be killed
        _restrain(request, uid)
    else:
        enclosure = _enclose(request, layout, ready.means, uid)
        ready.table.inside = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        lifelines.append(enclosure.init)
        cwd = Path(request.workdir)
        env = _environment(request, home=HOME)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    ready.workspace.root, ready.workspace.name = cwd, request.workdir
    ready.table.reaper = os.getpid() if enclosure is None else enclosure.init_pid
    os.environ.update(ready.table.new_mark())  # for tool servers, which are no strays
    commands = command_handler(env, cwd, ready.table, leave_nothing=request.phase is Phase.VERIFY)
    handlers = [(listeners[COMMANDS], commands)]
    handlers += [(listeners[server.socket], _handler(server, cwd, ready)) for server in request.servers]
    handlers.append((listeners[PORTS], offer_port))
    up = SandboxUp(ready.means, os.getpid(), enclosure.init_pid if enclosure else None, uid)
    owner.sendall(json.dumps(asdict(up)).encode() + b"\n")
    folders = layout.folders(request.phase)
    places = list(folders.values()) if enclosure is None else [Path(path) for path in folders]
    try:
        asyncio.run(serve(handlers, lifelines, Warden(request.limits, ready.table, places).watch()))
    except* SandboxLimitError as error:
        owner.sendall(json.dumps({"error": told(error)}).encode() + b"\n")
    if enclosure is None:
        ready.table.kill(os.getpid())
    else:
        enclosure.close()


def _listen(request: KeeperRequest) -> dict[str, socket.socket]:
    """Bind the sandbox's sockets while the host's file system is still in sight."""
    folder = Path(request.root, SOCKETS)
    shutil.rmtree(folder, ignore_errors=True)  # an earlier phase's
    folder.mkdir()
    os.chdir(folder)  # a socket's path may have no more than a hundred characters
    listeners = {}
    for name in (COMMANDS, PORTS, *(server.socket for server in request.servers)):
        listeners[name] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listeners[name].bind(name)
        listeners[name].listen(64)
    return listeners


def _user(request: KeeperRequest, means: Means) -> int | None:
    """A user of its own for every sandbox, if we may choose: it can harm nothing, and is counted apart."""
    if means is Means.USER_NAMESPACE or os.geteuid() != 0:
        return None
    return request.uid or _FIRST_UID + secrets.randbits(29)


def _can_work_as(uid: int, root: Path) -> bool:
    """Whether a plain process can become a user, and then reach what it needs: found out by doing it."""
    probe = root / "probe"
    probe.mkdir()
    pid = os.fork()
    if pid == 0:
        try:
            os.chown(probe, uid, uid)
            drop_to_reader(uid)
            # By effective user: asked for the real one, the kernel leaves out the capability that was kept.
            needed = ((probe, os.W_OK), (sys.executable, os.X_OK))
            os._exit(0 if all(os.access(path, mode, effective_ids=True) for path, mode in needed) else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    probe.rmdir()
    return status == 0


def _make_folders(layout: Layout, phase: Phase, uid: int | None) -> None:
    for folder in layout.folders(phase).values():
        folder.mkdir(parents=True, exist_ok=True)
        if uid is not None:
            os.chown(folder, uid, uid)


def _enclose(request: KeeperRequest, layout: Layout, means: Means, uid: int | None) -> Enclosure:
    etc = layout.root / "etc"
    etc.mkdir(exist_ok=True)
    for name, text in identity_files(INSIDE_UID if uid is None else uid).items():
        (etc / name).write_text(text)
    enclosure = Enclosure.open(bwrap_arguments(means, layout.folders(request.phase), etc))
    try:
        enclosure.enter(means, uid)
    except OSError as error:
        raise SandboxStartError(f"the sandbox's namespaces cannot be entered: {error}") from error
    request.limits.apply(count_processes=True)
    return enclosure


def _restrain(request: KeeperRequest, uid: int | None) -> None:
    """Do for plain processes what can be done without namespaces."""
    become_subreaper()
    if uid is None:
        with suppress(OSError):  # where not even that can be had
            filter_calls()
    else:
        drop_to_reader(uid)
    # Without a user of its own, its processes would be counted together with everything that we run.
    request.limits.apply(count_processes=uid is not None)


def _environment(request: KeeperRequest, home: str) -> dict[str, str]:
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONNOUSERSITE": "1",  # an agent could put code there that the verifier would run
        "TERM": "dumb",
        "USER": "agent",
        **request.env,
    }


def _handler(server: McpServerSpec, cwd: Path, ready: Preloaded) -> Handler:
    if server.command == OUR_SERVERS:
        known = server.args[0] if server.args else ""
        if known not in ready.servers:
            raise SandboxStartError(
                f"MCP server {server.name!r}: {OUR_SERVERS} has no server {known!r}, only {', '.join(ready.servers)}"
            )
        return mcp_handler(ready.servers[known])
    if shutil.which(server.command) is None:
        raise SandboxStartError(f"MCP server {server.name!r}: there is no command {server.command!r} in the sandbox")
    return process_handler([server.command, *server.args], cwd)
