"""Real `sandboxd` processes, each the first process of a bubblewrap of its own, as a container's would be."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import seatrial_api
import seatrial_sandbox
from seatrial_api.clock import Deadline
from seatrial_api.sandbox_token import ALGORITHM, METHODS, Method, Phase, SandboxClaims
from seatrial_api.sandboxd_config import CONFIG_VARIABLE, UID_VARIABLE, SandboxdConfig, SandboxLimits, SandboxServer
from seatrial_rollout.environment.isolation import INSIDE_UID, Isolation, Means, bwrap_arguments, identity_files
from seatrial_rollout.environment.probe import available_means
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.layout import Layout

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_SOCKET_FOLDER = "/run/seatrial"


@cache
def _found() -> tuple[Means, str]:
    return available_means(Isolation.BUBBLEWRAP)


def means() -> Means:
    """How sandboxes can be kept apart here; plain if they cannot."""
    return _found()[0]


def no_isolation() -> str:
    """Why sandboxes cannot be kept apart here, down to what the kernel refuses."""
    return f"there is no isolation here: {_found()[1]}"


@dataclass(slots=True)
class Daemon:
    """A running `sandboxd`."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    key: Ed25519PrivateKey
    trial: str = "trial-1"

    @classmethod
    def start(
        cls,
        servers: Iterable[str] = (),
        limits: SandboxLimits | None = None,
        env: Mapping[str, str] | None = None,
        trial: str = "trial-1",
    ) -> Self:
        """Start a daemon and wait until it answers.

        Raises:
            SandboxStartError: If it does not.
        """
        key = Ed25519PrivateKey.generate()
        name = f"sandbox-{secrets.token_hex(4)}"
        folder = Path(tempfile.mkdtemp(prefix="seatrial-daemon-"))
        config = SandboxdConfig(
            public_key=key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
            listen=f"unix:{_SOCKET_FOLDER}/sandboxd.sock",
            servers=[SandboxServer(name=server, command="seatrial-mcp", args=[server]) for server in servers],
            env=dict(env or {}),
            limits=limits or SandboxLimits(),
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                _command(folder),
                env={
                    "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
                    "PYTHONPATH": ":".join(_sources()),
                    CONFIG_VARIABLE: config.model_dump_json(by_alias=True),
                    UID_VARIABLE: name,
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        daemon = cls(name, folder, process, key, trial)
        if not daemon.answers():
            said = (folder / "log").read_text()
            daemon.stop()
            raise SandboxStartError(f"sandboxd does not start: {said}")
        return daemon

    def answers(self) -> bool:
        """Wait until it does, or is gone, or is late."""
        deadline = Deadline.after(_START_SECONDS)
        with grpc.insecure_channel(self.address) as channel:
            ready = grpc.channel_ready_future(channel)
            while deadline.remaining > 0 and self.process.poll() is None:
                with suppress(grpc.FutureTimeoutError):
                    ready.result(_LOOK_SECONDS)
                    return True
            ready.cancel()
        return False

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"unix:{self.folder}/run/sandboxd.sock"

    @property
    def public_key(self) -> str:
        """What it was given to check tokens with, as PEM."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def path(self, path: str) -> Path:
        """The host's view of a path inside."""
        return self.folder / path.strip("/").replace("/", "-")

    def token(self, phase: Phase) -> str:
        """A good token of a phase."""
        return self.signed(phase=phase)

    async def why_lost(self) -> str:
        """How its process ended, if it did."""
        code = self.process.poll()
        return "" if code is None else f"sandbox {self.name} was lost: its daemon ended with {code}"

    def signed(
        self,
        *,
        phase: Phase = Phase.AGENT,
        methods: Iterable[Method] | None = None,
        age: float = 0.0,
        lifetime: float = 600.0,
        trial: str | None = None,
        sandbox: str | None = None,
        key: Ed25519PrivateKey | None = None,
    ) -> str:
        """A token that says what it is told to."""
        issued = int(time.time() - age)
        claims = SandboxClaims(
            sandbox=sandbox or self.name,
            trial=trial or self.trial,
            issued_at=issued,
            expires_at=int(issued + lifetime),
            phase=phase,
            methods=frozenset(methods or METHODS[phase]),
        )
        return jwt.encode(claims.payload(), key or self.key, algorithm=ALGORITHM)

    def stop(self) -> None:
        """End it with everything in it, and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End it with everything in it, at once."""
        if self.process.returncode is None:  # it was not waited for, so that its number is still its own
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)  # the first process, and with it the namespace
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class DaemonSource:
    """Gives every trial a daemon of its own: a `SandboxSource` for one machine."""

    made: ClassVar[list["DaemonSource"]] = []
    """Every source, for tests that do not make theirs themselves."""
    servers: list[str] = field(default_factory=list)
    limits: SandboxLimits | None = None
    env: dict[str, str] = field(default_factory=dict)
    daemons: list[Daemon] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made.append(self)

    async def claim(self, world: str, trial_id: str) -> Daemon:  # noqa: ARG002  all worlds are the same here
        """Start a daemon."""
        daemon = Daemon.start(self.servers, self.limits, self.env, trial=trial_id)
        self.daemons.append(daemon)
        return daemon

    async def release(self, sandbox: Daemon) -> None:
        """End it."""
        sandbox.stop()


def _sources() -> list[str]:
    """Where the code under test lies, which need not be below the interpreter's prefix."""
    return sorted({str(Path(str(package.__file__)).parents[1]) for package in (seatrial_api, seatrial_sandbox)})


def _command(folder: Path) -> list[str]:
    uid = 100_000 + secrets.randbelow(1 << 28) if means() is Means.ROOT else None
    paths = [*{**Layout(folder).folders(Phase.AGENT), **Layout(folder).folders(Phase.VERIFY)}, "/home/verifier"]
    folders = {path: folder / path.strip("/").replace("/", "-") for path in paths}
    folders[_SOCKET_FOLDER] = folder / "run"
    for place in folders.values():
        place.mkdir()
        if uid is not None:
            os.chown(place, uid, uid)
    etc = folder / "etc"
    etc.mkdir()
    for name, text in identity_files(INSIDE_UID if uid is None else uid).items():
        (etc / name).write_text(text)
    arguments = bwrap_arguments(means(), folders, etc)
    binds = [word for source in _sources() for word in ("--ro-bind", source, source)]
    become = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *_NO_PRIVILEGE]
    return [*arguments[:-4], *binds, *arguments[-4:], "--", *become, sys.executable, "-m", "seatrial_sandbox.daemon"]


_NO_PRIVILEGE = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
