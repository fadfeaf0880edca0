"""The sandbox as its daemon holds it: phase, processes, files and what is remembered of them."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.finding import Finding, FindingKind
from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.sandbox_token import Phase
from seatrial_api.sandboxd_config import SandboxdConfig
from seatrial_sandbox import files
from seatrial_sandbox.daemon import tools
from seatrial_sandbox.daemon.threads import Threads
from seatrial_sandbox.daemon.transfers import Transfers
from seatrial_sandbox.errors import SandboxDiedError, SandboxError, SandboxPathError, SandboxStateError
from seatrial_sandbox.layout import TESTS, VERIFIER_LOGS, Layout
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.processes import Command, ProcessTable, still_there
from seatrial_sandbox.server_spec import MAX_LINE_BYTES, McpServerSpec
from seatrial_sandbox.state.archive import pack
from seatrial_sandbox.state.examination import agent_places, agent_state
from seatrial_sandbox.state.manifest import Hasher, Manifest
from seatrial_sandbox.state.restore import restore
from seatrial_sandbox.streaming import Emit, Ended, stream
from seatrial_sandbox.text import printable

MAX_SNAPSHOTS = 64
"""Most snapshots that are remembered; the first always is."""
MAX_INCIDENTS = 1000
DEFAULT_OUTPUT_BYTES = 10_000_000
_OURS = "SEATRIAL_"
_END_SECONDS = 30.0
_POLL_SECONDS = 0.01
_REAP_SECONDS = 0.5
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Frozen:
    """What the end of the agent's phase did away with."""

    killed_processes: int
    removed_paths: list[str]


@dataclass(frozen=True, slots=True)
class Archive:
    """A snapshot's contents, packed."""

    file: BinaryIO
    blobs: int
    """How many."""


@dataclass(slots=True)
class Sandbox:
    """Everything that a sandbox is; one of its methods that changes the phase runs at a time."""

    config: SandboxdConfig
    inherited: Mapping[str, str]
    """Environment of the container."""
    root: Path = Path("/")
    clock: Clock = SYSTEM_CLOCK
    phase: Phase = field(default=Phase.AGENT, init=False)
    incidents: list[Finding] = field(default_factory=list, init=False)
    """What was refused or undone, for the audit."""
    threads: Threads = field(default_factory=Threads, init=False)
    transfers: Transfers = field(init=False)
    layout: Layout = field(init=False)
    _snapshots: dict[str, Manifest] = field(default_factory=dict, init=False)
    _table: ProcessTable = field(default_factory=ProcessTable, init=False)
    _hasher: Hasher = field(default_factory=Hasher, init=False)
    _tools: "_Gateway | None" = field(default=None, init=False)
    _starting_tools: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self.layout = Layout(self.root, self.config.workdir, in_place=True)
        self.transfers = Transfers(Path(self.config.spool), self.clock)
        self._table.reaper = os.getpid()
        for folder in self.layout.folders(Phase.AGENT).values():
            with suppress(PermissionError):  # what the image does not let us make, nobody can use
                folder.mkdir(parents=True, exist_ok=True)

    @property
    def servers(self) -> list[McpServerSpec]:
        """MCP servers that answer in this phase."""
        if self.phase is not Phase.AGENT:
            return []
        return [McpServerSpec(**server.model_dump()) for server in self.config.servers]

    @property
    def places(self) -> list[str]:
        """Paths that the agent may write, as a state names them."""
        return agent_places(self.layout)

    @property
    def num_processes(self) -> int:
        """Processes besides the daemon's own."""
        return len(self._table.descendants(os.getpid()))

    def note(self, kind: FindingKind, detail: str, path: str = "") -> None:
        """Remember what was refused or undone."""
        if len(self.incidents) < MAX_INCIDENTS:
            self.incidents.append(Finding(kind=kind, path=printable(path), detail=printable(detail)[:500]))

    def marked_environment(self) -> dict[str, str]:
        """Environment of a process of ours in the sandbox, which is then no stray."""
        return {**self._environment(), **self._table.new_mark()}

    async def exec(self, request: pb.ExecRequest, emit: Emit) -> Ended:
        """Run a command; in phase Verify nothing that it starts outlives it.

        Raises:
            SandboxError: If it cannot be started.
        """
        command = Command(
            argv=list(request.argv),
            cwd=Path(self.config.workdir, request.cwd),
            env={**self._environment(), **request.env},
            timeout_seconds=request.timeout_seconds or None,
            max_bytes=request.max_output_bytes or DEFAULT_OUTPUT_BYTES,
            limits=self._limits,
        )
        try:
            return await stream(command, self._table, emit, leave_nothing=self.phase is Phase.VERIFY)
        except (OSError, ValueError, IndexError) as error:  # a NUL in the command; no command at all
            raise SandboxError(f"the command cannot be started: {error}") from error

    async def connect(self, server: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an MCP server; a gateway that an agent has killed is started again.

        Raises:
            SandboxError: If there is no such server in this phase.
            SandboxDiedError: If it does not answer.
        """
        known = [spec.name for spec in self.servers]
        if server not in known:
            raise SandboxError(f"there is no MCP server {server!r}; there are: {', '.join(known) or 'none'}")
        async with self._starting_tools:
            for _ in range(2):
                if self._tools is not None and self._table.is_ending(self._tools.process.pid):
                    await self._drop_tools()  # its sockets may still be there, for a moment
                if self._tools is None:
                    self._tools = await self._start_tools()
                with suppress(OSError):
                    connection = await asyncio.open_unix_connection(self._tools.prefix + server, limit=MAX_LINE_BYTES)
                    if _listener(connection[1]) == self._tools.process.pid:
                        return connection
                    connection[1].close()
                    self.note(FindingKind.TAMPERING, f"something else answered in place of MCP server {server!r}")
                await self._drop_tools()
        raise SandboxDiedError(f"MCP server {server!r} does not answer")

    async def freeze(self) -> Frozen:
        """Kill every process, remove what lies where the verifier's files will, and begin phase Verify.

        Whoever calls this has seen to it that nothing of phase Agent is under way.

        Raises:
            SandboxError: If processes do not end.
        """
        self.phase = Phase.VERIFY
        killed = await self._kill_all()
        await self._drop_tools()
        removed = await self.threads.run(self._clear_for_verifier)
        for path in removed:
            self.note(FindingKind.TAMPERING, "was there before the tests and was removed", path)
        return Frozen(killed, removed)

    async def snapshot(self, base: str, *, manifest_only: bool) -> tuple[Manifest, Archive | None]:
        """Remember the files as they are; without `manifest_only` also pack those whose content the base has not.

        Raises:
            SandboxStateError: If the base is not known.
        """
        known = self.remembered(base).hashes if base else set()
        state = await self.state()
        archive = None
        if not manifest_only:
            file, spool = self.transfers.new_file(), Path(self.config.spool)
            packed = await self.threads.run(partial(pack, state, self.root, file, known=known, spool=spool))
            file.flush()
            state, archive = packed.manifest, Archive(file, packed.blobs)
        self._remember(state)
        return state, archive

    async def restore(self, uploads: list[str], snapshot: str) -> Manifest:
        """Put the files back as they were.

        Raises:
            SandboxStateError: If an upload or a content is missing.
            SandboxDataError: If an archive is not what it should be.
            SandboxPathError: If it holds what lies elsewhere.
        """
        archives = [self.transfers.arrived(name).file for name in uploads]
        current = await self.state()
        restored = await self.threads.run(partial(restore, archives, snapshot, current, self.root, self.places))
        self._remember(restored)
        for name in uploads:
            self.transfers.drop_upload(name)
        return restored

    async def state(self) -> Manifest:
        """All that the agent may write, as it is now."""
        return await self.threads.run(partial(agent_state, self.layout, self._hasher))

    def remembered(self, snapshot: str) -> Manifest:
        """A snapshot; the first if the name is empty.

        Raises:
            SandboxStateError: If it is not known.
        """
        if not snapshot and self._snapshots:
            return next(iter(self._snapshots.values()))
        if snapshot not in self._snapshots:
            raise SandboxStateError(
                f"there is no snapshot {snapshot[:64]!r}" if snapshot else "there is no snapshot yet"
            )
        return self._snapshots[snapshot]

    async def warm(self) -> None:
        """Have the MCP servers ready before the first trial comes."""
        if self.servers:
            async with self._starting_tools:
                self._tools = await self._start_tools()

    async def reap(self) -> None:
        """Bury orphans for ever: a process that died is gone once its parent has looked, and theirs are we."""
        seen: set[int] = set()
        while True:
            await self.clock.sleep(_REAP_SECONDS)
            zombies = self._table.zombies()
            self._table.bury(zombies & seen)  # a child of a library's is waited for long before it is seen twice
            seen = zombies

    @property
    def _limits(self) -> Limits:
        return Limits(**self.config.limits.model_dump())

    def _environment(self) -> dict[str, str]:
        """What commands and servers begin with; nothing in it is ours to hide."""
        inherited = {name: value for name, value in self.inherited.items() if not name.startswith(_OURS)}
        return {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            **inherited,
            "HOME": self.layout.home(self.phase),
            "PYTHONNOUSERSITE": "1",  # an agent could put code there that the verifier would run
            "TERM": "dumb",
            "USER": "agent",
            **self.config.env,
        }

    def _remember(self, state: Manifest) -> None:
        self._snapshots[state.snapshot] = state
        if len(self._snapshots) > MAX_SNAPSHOTS:
            del self._snapshots[list(self._snapshots)[1]]

    async def _start_tools(self) -> "_Gateway":
        prefix = tools.new_prefix()
        process = await asyncio.create_subprocess_exec(
            *tools.command(self.config.workdir, self.servers, prefix),
            env=self.marked_environment(),
            cwd=self.layout.root / self.config.workdir.lstrip("/"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._table.owned.add(process.pid)
        with suppress(ProcessLookupError):
            self._limits.apply(process.pid, count_processes=True)
        if process.stdout is None or not await process.stdout.readline():
            raise SandboxDiedError("the MCP servers do not start")
        return _Gateway(process, prefix)

    async def _drop_tools(self) -> None:
        if self._tools is not None:
            with suppress(ProcessLookupError):
                self._tools.process.kill()
            await self._tools.process.wait()
            self._table.owned.discard(self._tools.process.pid)
            self._tools = None

    async def _kill_all(self) -> int:
        """End every process but the daemon, and wait until they are gone; returns how many there were."""
        deadline = Deadline.after(_END_SECONDS, self.clock)
        victims = self._table.descendants(os.getpid())
        if agents := self._table.names(victims - self._table.owned):
            self.note(FindingKind.LEFT_RUNNING, still_there(agents))
        while left := self._table.descendants(os.getpid()):
            if os.getpid() == 1:  # at once for the whole namespace: no fork can get ahead of it
                with suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            else:
                self._table.kill(os.getpid())
            if deadline.remaining <= 0:
                raise SandboxError(f"{len(left)} processes cannot be ended")
            await self.clock.sleep(_POLL_SECONDS)
        self._table.bury(self._table.zombies())
        return len(victims)

    def _clear_for_verifier(self) -> list[str]:
        removed = []
        folders = self.layout.folders(Phase.VERIFY)
        for path in (TESTS, VERIFIER_LOGS, self.layout.home(Phase.VERIFY)):
            parts = folders[path].relative_to(self.root).parts
            with suppress(FileNotFoundError):
                try:
                    removed += [f"{path}/{name}" for name in files.clear(self.root, parts)]
                except SandboxPathError:  # not even a folder
                    files.discard(self.root, parts)
                    removed.append(path)
            with files.sandbox_errors(f"making {path}"), files.open_folder(self.root, parts, make=True) as folder:
                if os.fstat(folder).st_uid == os.geteuid():  # the root of a volume is its node's
                    os.fchmod(folder, 0o755)
        return removed


def _listener(connection: asyncio.StreamWriter) -> int:
    """The process that listens at the other end: an agent may have killed the gateway and taken its address."""
    facts = connection.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(facts)[0]
    return pid


@dataclass(frozen=True, slots=True)
class _Gateway:
    process: asyncio.subprocess.Process
    prefix: str
