"""Sandboxes to try to get out of, on this machine, and what is outside of them to be reached."""

import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.sandbox_token import Phase
from seatrial_api.sandboxd_config import SandboxLimits
from seatrial_rollout.environment.isolation import Isolation
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.server_spec import McpServerSpec
from tests.escapes.arena import Arena
from tests.escapes.attempt import Place
from tests.sandbox_daemons import DaemonSource

SERVERS = ("filesystem", "sheets", "code")
LIMITS = {"processes": 100, "memory_mb": 600, "file_mb": 64, "open_files": 256}
SECRET = "canary-" + secrets.token_hex(8)
_SECRET_VARIABLE = "SEATRIAL_TEST_JUDGE_KEY"  # noqa: S105  a name


@dataclass(frozen=True, slots=True)
class Outside:
    """What this machine has that nobody in a sandbox may get at."""

    folder: Path
    file: Path
    """Readable by everybody."""
    port: int
    """Where something listens on every address."""
    abstract: str

    def facts(self) -> dict[str, Any]:
        """For the scripts."""
        told = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout
        addresses = [one for one in told.split() if ":" not in one] or ["192.0.2.1"]
        return {
            "files": [str(self.file), __file__],
            "folders": [str(self.folder)],
            "pids": [os.getpid(), os.getppid()],
            "secrets": [SECRET, "BEGIN PUBLIC KEY"],
            "loopback": [f"127.0.0.1:{self.port}"],
            "abstract": [self.abstract],
            "services": [f"{address}:{self.port}" for address in addresses],
            "kubernetes": ["10.96.0.1:443", "10.96.0.1:6443"],
            "name_servers": ["10.96.0.10", "8.8.8.8"],
        }


@contextmanager
def outside() -> Iterator[Outside]:
    """A file, a folder, a secret in the environment, and sockets."""
    with (
        tempfile.TemporaryDirectory(prefix="seatrial-outside-") as place,
        socket.create_server(("", 0)) as everywhere,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        folder = Path(place, "folder")
        folder.mkdir()
        Path(place).chmod(0o755)
        folder.chmod(0o777)
        file = Path(place, "file")
        file.write_text(SECRET)
        name = f"seatrial-outside-{secrets.token_hex(4)}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        os.environ[_SECRET_VARIABLE] = SECRET
        try:
            yield Outside(folder, file, everywhere.getsockname()[1], name)
        finally:
            del os.environ[_SECRET_VARIABLE]


@asynccontextmanager
async def local_arena(place: Place, folder: Path, there: Outside) -> AsyncIterator[Arena]:
    """Two sandboxes of the local provider.

    Raises:
        SandboxStartError: If this machine cannot isolate any.
    """
    servers = [McpServerSpec(name, "seatrial-mcp", [name]) for name in SERVERS]
    isolation = Isolation.PLAIN if place is Place.PLAIN else Isolation.BUBBLEWRAP
    async with AsyncExitStack() as stack:
        started = []
        for name in ("attacker", "neighbour"):
            one = await LocalSandbox.start(folder / name, servers, limits=Limits(**LIMITS), isolation=isolation)
            stack.push_async_callback(one.stop)
            started.append(one)
        attacker, neighbour = started
        root = folder / "neighbour"
        facts = (
            there.facts()
            | LIMITS
            | {
                "neighbour": {
                    "pids": [neighbour.pid, neighbour.keeper_pid],
                    "files": [str(root), str(root / "workspace/secret")],
                    "sockets": [str(root / "sockets/commands.sock"), str(root / "sockets/code.sock")],
                    "addresses": [],
                },
            }
        )

        async def findings() -> Sequence[str]:
            return [f"{one.kind.name} {one.path} {one.detail}" for one in await attacker.findings()]

        scratch = folder / "scratch"
        scratch.mkdir()
        yield Arena(place, attacker, neighbour, scratch, facts, findings, [there.folder])


@asynccontextmanager
async def daemon_arena(folder: Path, there: Outside) -> AsyncIterator[Arena]:
    """Two sandboxes, each behind a `sandboxd` that is its first process."""
    source = DaemonSource(servers=list(SERVERS), limits=SandboxLimits(**LIMITS))
    async with AsyncExitStack() as stack:
        started = []
        for name in ("trial-attacker", "trial-neighbour"):
            one = await RemoteSandbox.claim(source, "world", name)
            stack.push_async_callback(one.stop)
            started.append(one)
        attacker, neighbour = started
        daemon, beside = source.daemons
        await attacker.client.snapshot(None)
        facts = (
            there.facts()
            | LIMITS
            | {
                "sandboxd": "unix:/run/seatrial/sandboxd.sock",
                "name": daemon.name,
                "trial": daemon.trial,
                "public_key": daemon.public_key,
                "token": daemon.token(Phase.AGENT),
                "neighbour": {
                    "pids": [beside.process.pid],
                    "files": [str(beside.folder), str(beside.path("/workspace") / "secret")],
                    "sockets": [beside.address.removeprefix("unix:")],
                    "addresses": [],
                },
            }
        )

        async def findings() -> Sequence[str]:
            return await told(attacker)

        yield Arena(Place.DAEMON, attacker, neighbour, folder, facts, findings, [there.folder])


async def told(sandbox: RemoteSandbox) -> list[str]:
    """What sandboxd's audit says."""
    findings, _ = await sandbox.client.audit(pb.AuditRequest(max_findings=100_000))
    return [f"{pb.Finding.Kind.Name(one.kind).removeprefix('KIND_')} {one.path} {one.detail}" for one in findings]
