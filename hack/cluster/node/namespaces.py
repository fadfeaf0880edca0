"""The node's own network, mounts and processes.

Nothing done inside reaches the machine, and killing the first process inside ends all others.
"""

import asyncio
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from hack.cluster.errors import CommandError, StartError
from hack.cluster.layout import INSIDE, NODE_ADDRESS
from seatrial_api.clock import SYSTEM_CLOCK

# Bash as first process takes in orphans, as containers' shims are, and ends with the runner.
_INIT = ("bash", "-c", '"$@" & wait $!', "init")
_POLL_SECONDS = 0.01

# The kubelet insists on setting these for the whole machine: it gets files that hold what it wants.
_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

_WRITTEN_TO = ("/var/lib", "/var/log")
"""Where kubelet and network plugins leave things whatever they are told."""


def inside_own(*words: str) -> tuple[str, ...]:
    """The command as second process of fresh namespaces, which end with whoever runs this."""
    unshare = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--propagation=slave", "--")
    return (*unshare, *_INIT, *words)


def entering(init: int, *words: str) -> tuple[str, ...]:
    """The command inside the namespaces of a running node."""
    return ("nsenter", "--target", str(init), "--mount", "--net", "--pid", "--", *words)


async def init_of(unshare: asyncio.subprocess.Process) -> int:
    """The first process inside, as the machine counts it.

    Raises:
        StartError: if this machine allows no namespaces.
    """
    while not (found := _children(unshare.pid)):
        if unshare.returncode is not None:
            raise StartError(f"unshare ended with {unshare.returncode}: namespaces are not allowed here")
        await SYSTEM_CLOCK.sleep(_POLL_SECONDS)
    return found[0]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def furnish(folder: Path) -> None:
    """From inside: mounts and addresses, as a node has them."""
    _mount(folder)
    _keep_sysctls()
    _connect()


def _mount(folder: Path) -> None:
    _run("mount", "--make-rshared", "/")
    _mount_new("proc", Path("/proc"))
    _mount_new("tmpfs", Path("/run"))
    INSIDE.mkdir()
    _run("mount", "--bind", str(folder), str(INSIDE))
    for place in _WRITTEN_TO:
        _divert(place)
    # A second proc without anything mounted over parts of it: the kernel asks for one before it allows user namespaces.
    clean_proc = Path("/run/proc")
    clean_proc.mkdir()
    _mount_new("proc", clean_proc)
    if Path("/sys/fs/cgroup/unified").is_mount():
        _run("umount", "/sys/fs/cgroup/unified")  # both versions at once: runtimes must see plain version 1
    _resolve_by(NODE_ADDRESS)


def _divert(place: str) -> None:
    """Show what the machine has at a place, and keep what is written there in the copy's folder."""
    kept, scratch = (INSIDE / "diverted" / kind / place.strip("/") for kind in ("kept", "scratch"))
    kept.mkdir(parents=True)
    scratch.mkdir(parents=True)
    options = f"lowerdir={place},upperdir={kept},workdir={scratch}"
    _run("mount", "-t", "overlay", "-o", options, "overlay", place)


def _resolve_by(server: str) -> None:
    """Let the node's own processes resolve cluster names, whatever the machine resolves by."""
    theirs = Path("/etc/resolv.conf").resolve()
    ours = theirs if theirs.is_relative_to("/run") else Path("/run/resolv.conf")
    ours.parent.mkdir(parents=True, exist_ok=True)
    ours.write_text(f"nameserver {server}\nsearch svc.cluster.local cluster.local\n")
    if ours != theirs:
        _run("mount", "--bind", str(ours), str(theirs))


def _keep_sysctls() -> None:
    for name, value in _SYSCTLS.items():
        file = Path("/run") / name.replace("/", ".")
        file.write_text(f"{value}\n")
        _run("mount", "--bind", str(file), f"/proc/sys/{name}")


def _connect() -> None:
    """An address, and a default route that leads nowhere: without one, nothing could connect to a Service's address."""
    batch = (
        "link set lo up",
        "link add node0 type veth peer name node0-peer",
        f"addr add {NODE_ADDRESS}/24 dev node0",
        "link set node0 up",
        "link set node0-peer up",
        "route add default via 192.168.77.254 dev node0",
    )
    _run("ip", "-batch", "-", stdin="\n".join(batch))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _mount_new(kind: str, place: Path) -> None:
    _run("mount", "-t", kind, kind, str(place))


def _run(*words: str, stdin: str = "") -> None:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandError(command=words, status=done.returncode, output=done.stderr)


async def relay(entrance: socket.socket, port: int) -> None:
    """Carry every connection made to a socket of the machine to a port of the node's loopback."""

    async def carry(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            server, requests = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            answers.close()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(client, requests))
            group.create_task(_pump(server, answers))

    async with await asyncio.start_server(carry, sock=entrance) as server:
        await server.serve_forever()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one side hung up: the other learns it by our closing
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()
