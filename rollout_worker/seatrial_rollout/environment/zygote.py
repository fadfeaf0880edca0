"""The zygote: a warm process that forks the keepers of new sandboxes, so that a sandbox costs milliseconds.

    owner ── connect ──▶ zygote ── fork ──▶ keeper
      └───────── the same connection ─────────┘   when the owner hangs up, however it ends, the sandbox ends

The zygote has one thread, holds everything imported and built, and knows what isolation this machine allows: it tries
once, at its start, and never falls back later.
"""

import asyncio
import atexit
import gc
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Never, Self

import structlog

from seatrial_rollout.environment.isolation import Isolation, Means, bwrap_path
from seatrial_rollout.environment.protocol import KeeperRequest
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.privileges import become_subreaper

if TYPE_CHECKING:
    from seatrial_rollout.environment.keeper import Preloaded

ADDRESS_VARIABLE = "SEATRIAL_SANDBOX_ZYGOTE"
"""Environment variable with the socket of a running zygote."""
_START_SECONDS = 120.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Zygote:
    """A running zygote of ours."""

    address: Path
    """Its socket; set `SEATRIAL_SANDBOX_ZYGOTE` to it and every process below uses this zygote."""
    means: Means
    process: subprocess.Popen[bytes]
    owner: int = field(default_factory=os.getpid)

    @classmethod
    async def start(cls, isolation: Isolation = Isolation.AUTO) -> Self:
        """Start a zygote and wait until it is warm; it ends with this process.

        Raises:
            SandboxStartError: If it cannot start, or the isolation asked for cannot be had.
        """
        return await asyncio.to_thread(cls._start, isolation)

    async def stop(self) -> None:
        """End the zygote; sandboxes that it forked live on."""
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """End the zygote, unless this process is only a fork of its owner."""
        if self.owner != os.getpid():
            return
        _end(self.process)

    @classmethod
    def _start(cls, isolation: Isolation) -> Self:
        address = Path(tempfile.mkdtemp(prefix="seatrial-"), "zygote.sock")
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(address), isolation],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; the zygote ends when we do
        )
        line = b""
        if process.stdout is not None and select.select([process.stdout], [], [], _START_SECONDS)[0]:
            line = process.stdout.readline()
        report = json.loads(
            line or b'{"means": "Plain", "error": "the sandbox zygote died; its complaint is on stderr"}'
        )
        if not line or (report["error"] and isolation is Isolation.BUBBLEWRAP):
            _end(process)
            raise SandboxStartError(f"no sandbox can be started: {report['error']}")
        if report["error"]:
            _log.warning("sandboxes are not isolated: agents read whatever this user can", reason=report["error"])
        return cls(address, Means(report["means"]), process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


_shared: dict[Isolation, Zygote] = {}
_starting = threading.Lock()


async def zygote_address(isolation: Isolation) -> Path:
    """The socket of the zygote that this process uses: one that runs, else one of its own, started now.

    Raises:
        SandboxStartError: If it cannot start, or the isolation asked for cannot be had.
    """
    address = os.environ.get(ADDRESS_VARIABLE)
    if address and isolation is not Isolation.PLAIN:
        return Path(address)
    return await asyncio.to_thread(_shared_address, isolation)


def _shared_address(isolation: Isolation) -> Path:
    with _starting:
        zygote = _shared.get(isolation)
        if zygote is None or zygote.owner != os.getpid() or zygote.process.poll() is not None:
            zygote = _shared[isolation] = Zygote._start(isolation)  # noqa: SLF001  the same module
            atexit.register(zygote.kill)
        return zygote.address


def main(address: str, isolation: Isolation) -> None:
    """Be the zygote until standard input ends."""
    from seatrial_rollout.environment.keeper import Preloaded  # noqa: PLC0415  the owner does not need it
    from seatrial_rollout.environment.probe import available_means  # noqa: PLC0415
    from seatrial_rollout.environment.warmth import warm  # noqa: PLC0415
    from seatrial_sandbox.processes import ProcessTable  # noqa: PLC0415
    from seatrial_sandbox.servers import BUILDERS  # noqa: PLC0415
    from seatrial_sandbox.workspace import Workspace  # noqa: PLC0415

    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    means, error = available_means(isolation)
    if means is not Means.PLAIN:
        bwrap_path()  # once for all keepers
    workspace = Workspace(Path("/"))
    servers = {name: build(workspace) for name, build in BUILDERS.items()}
    for server in servers.values():
        server.preload()
        asyncio.run(warm(server))
    ready = Preloaded(workspace, servers, ProcessTable(), means)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(128)
    become_subreaper()  # what a killed keeper leaves comes to us, since many a container's first process reaps nothing
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # and is reaped by the kernel, as the keepers are
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    gc.freeze()  # what is here now is never garbage, and stays shared with the keepers
    sys.stdout.write(json.dumps({"means": means, "error": error}) + "\n")
    sys.stdout.flush()
    try:
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            owner, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _be_keeper(owner, ready)
            owner.close()
    finally:
        shutil.rmtree(Path(address).parent, ignore_errors=True)


def _be_keeper(owner: socket.socket, ready: "Preloaded") -> Never:
    """Keep one sandbox, then end."""
    from seatrial_rollout.environment.keeper import keep  # noqa: PLC0415  loaded already

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    try:
        with owner.makefile("rb") as stream:
            request = KeeperRequest.from_json(stream.readline())
        keep(request, owner, ready)
    except SandboxStartError as error:
        _complain(owner, str(error))
    except OSError as error:
        _complain(owner, f"{error.strerror or error}: {error.filename}", error.errno)
    except BaseException as error:  # noqa: BLE001  the root of the process
        traceback.print_exc()
        _complain(owner, f"{type(error).__name__}: {error}")
    os._exit(0)


def _complain(owner: socket.socket, error: str, code: int | None = None) -> None:
    with suppress(OSError):
        owner.sendall(json.dumps({"error": error, "errno": code}).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], Isolation(sys.argv[2]))
