"""A sandbox on this machine: a root of its own with MCP servers, commands and files."""

import asyncio
import errno
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from seatrial_api.errors import WaitTimeoutError
from seatrial_api.finding import Finding
from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.host_files import HostFiles
from seatrial_rollout.environment.inspector import Inspector
from seatrial_rollout.environment.interface import ExecResult
from seatrial_rollout.environment.isolation import Isolation, Means
from seatrial_rollout.environment.loopback import Serve, served_port
from seatrial_rollout.environment.protocol import COMMANDS, PORTS, SANDBOX_VARIABLE, SOCKETS, KeeperRequest, SandboxUp
from seatrial_rollout.environment.zygote import zygote_address
from seatrial_sandbox import files
from seatrial_sandbox.errors import (
    CommandTimeoutError,
    SandboxDiedError,
    SandboxDiskFullError,
    SandboxError,
    SandboxStartError,
)
from seatrial_sandbox.layout import Layout
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.processes import ProcessTable, readable
from seatrial_sandbox.server_spec import MAX_LINE_BYTES, McpServerSpec
from seatrial_sandbox.state.manifest import Hasher
from seatrial_sandbox.transport import Streams, connect_unix

_START_SECONDS = 60.0
_END_SECONDS = 30.0
_WORDS_SECONDS = 5.0
_SCRIPTS = ("/tests", "/solution")
_NO_LIMITS = Limits()


@dataclass(slots=True)
class _Keeper:
    """Our end of a running keeper; it lives until we hang up."""

    up: SandboxUp
    connection: socket.socket
    process: int
    """pidfd of the keeper."""
    init: int | None
    """pidfd of the sandbox's first process."""

    @classmethod
    async def start(cls, zygote: Path, request: KeeperRequest) -> Self:
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)  # noqa: FBT003  the standard library's signature
        try:
            async with asyncio.timeout(_START_SECONDS):
                await loop.sock_connect(connection, str(zygote))
                await loop.sock_sendall(connection, request.to_json().encode() + b"\n")
                up = await _receive_up(connection)
            init = None if up.init_pid is None else os.pidfd_open(up.init_pid)
            return cls(up, connection, os.pidfd_open(up.pid), init)
        except TimeoutError:
            connection.close()
            raise WaitTimeoutError(waiting_for="a sandbox to come up", seconds=_START_SECONDS) from None
        except OSError as error:
            connection.close()
            raise SandboxStartError(f"the sandbox zygote at {zygote} does not answer: {error}") from error
        except BaseException:
            connection.close()
            raise

    async def end(self) -> None:
        """End every process of the sandbox, and wait until they are gone.

        Raises:
            WaitTimeoutError: If the kernel cannot end them.
        """
        self.connection.close()  # a plain keeper now hunts down what it has started
        if self.init is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.process, signal.SIGKILL)
        try:
            async with asyncio.timeout(_END_SECONDS):
                await readable(self.process)
                if self.init is not None:
                    await readable(self.init)
        except TimeoutError:
            raise WaitTimeoutError(waiting_for="a sandbox's processes to end", seconds=_END_SECONDS) from None
        finally:
            os.close(self.process)
            if self.init is not None:
                os.close(self.init)


class LocalSandbox:
    """One sandbox, from `start` to `stop`.

    In phase Agent its MCP servers answer, and tests and the verifier's logs do not exist. `kill_all` ends every
    process and begins phase Verify: same files, fresh namespaces, no MCP servers.

    If this process ends, however it ends, the sandbox's processes end too.
    """

    def __init__(self, layout: Layout, request: KeeperRequest, zygote: Path, keeper: _Keeper) -> None:
        """Use `start`."""
        self._layout = layout
        self._request = request
        self._zygote = zygote
        self._keeper: _Keeper | None = keeper
        self._up = keeper.up
        hasher = Hasher()
        self._inspector = Inspector(layout, hasher)
        self._files = HostFiles(layout, hasher)
        # Opened once: paths below it stay short enough for sockets, however deep the root lies.
        self._root = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY)

    @classmethod
    async def start(
        cls,
        root: Path,
        servers: Sequence[McpServerSpec] = (),
        *,
        workdir: str = "/workspace",
        limits: Limits = _NO_LIMITS,
        env: Mapping[str, str] | None = None,
        isolation: Isolation = Isolation.AUTO,
    ) -> Self:
        """Bring a sandbox up.

        Args:
            root: Host folder for all that it holds; it must not exist, and `stop` removes it.
            servers: MCP servers to offer.
            workdir: Where the world's files lie and commands start.
            limits: What its processes may take.
            env: Environment of everything in it.
            isolation: How it is kept apart.

        Raises:
            SandboxStartError: If it does not come up.
            SandboxDiskFullError: If there is no room for it.
            WaitTimeoutError: If it takes too long.
        """
        zygote = await zygote_address(isolation)
        layout = Layout(root, workdir)
        request = KeeperRequest(str(root), workdir, Phase.AGENT, list(servers), limits, dict(env or {}))
        await asyncio.to_thread(root.mkdir, parents=True)
        try:
            keeper = await _Keeper.start(zygote, request)
        except BaseException:
            files.remove(root)
            raise
        sandbox = cls(layout, request, zygote, keeper)
        if isolation is Isolation.BUBBLEWRAP and sandbox.means is Means.PLAIN:
            await sandbox.stop()
            raise SandboxStartError("bubblewrap was asked for, but the zygote has only plain processes")
        return sandbox

    @property
    def means(self) -> Means:
        """How it is kept apart."""
        return self._up.means

    @property
    def phase(self) -> Phase:
        """Who acts in it now."""
        return self._request.phase

    @property
    def keeper_pid(self) -> int:
        """Host's number of the process that serves the sandbox."""
        return self._up.pid

    @property
    def pid(self) -> int:
        """Host's number of the process whose end is the sandbox's end."""
        return self._up.init_pid or self._up.pid

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a bash command; cancelling kills it with all that it started.

        Args:
            command: For `bash -c`.
            cwd: Where it starts; the workdir if not given.
            env: Added to the sandbox's environment.
            timeout_seconds: Time after which it is killed.

        Raises:
            CommandTimeoutError: If it was killed because its time was up.
            SandboxDiedError: If the sandbox ended meanwhile.
            SandboxError: If the command cannot be started.
        """
        request = {
            "argv": ["bash", "-c", self._localise(command)],
            "cwd": cwd and self._localise(cwd),
            "env": dict(env or {}),
            "timeout_seconds": timeout_seconds,
        }
        answer = await self._ask(json.dumps(request).encode() + b"\n")
        if "error" in answer:
            raise SandboxError(f"the command cannot be started: {answer['error']}")
        if answer["timed_out"]:
            raise CommandTimeoutError(command=command, seconds=timeout_seconds or 0.0)
        return ExecResult(answer["stdout"], answer["stderr"], answer["return_code"])

    @asynccontextmanager
    async def connect(self, server: str) -> AsyncIterator[Streams]:
        """A transport to an MCP server, for `mcp.Client`.

        Raises:
            SandboxError: If the sandbox has no such server in this phase.
            SandboxDiedError: If the sandbox has ended.
        """
        known = {spec.name: spec for spec in self._request.servers}
        if server not in known:
            raise SandboxError(f"there is no MCP server {server!r}; there are: {', '.join(known) or 'none'}")
        try:
            transport = connect_unix(self._socket(known[server].socket))
            async with transport as connection:
                yield connection
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise SandboxDiedError(f"MCP server {server!r} does not answer: the sandbox has ended") from error

    def serve_port(self, serve: Serve) -> AbstractAsyncContextManager[int]:
        """Serve a port on its own loopback while the block runs, or until its phase ends; yields its number.

        Raises:
            SandboxDiedError: If the sandbox has ended.
        """
        return served_port(self._socket(PORTS), serve)

    async def kill_all(self) -> None:
        """End every process that the agent has left, whatever it did to stay; then begin phase Verify.

        The PID namespace ends as a whole, so nothing can outrun it by forking. Plain processes are hunted down.

        Raises:
            SandboxStartError: If the sandbox cannot be brought up again.
            WaitTimeoutError: If the kernel cannot end a process.
        """
        await asyncio.to_thread(self._inspector.note_processes, self._up.pid, self._up.init_pid)
        await self._end()
        self._request = replace(self._request, phase=Phase.VERIFY, servers=[], uid=self._up.uid)
        self._keeper = await _Keeper.start(self._zygote, self._request)
        self._up = self._keeper.up

    async def stop(self, *, delete: bool = True) -> None:
        """End the sandbox; doing so twice does no harm.

        Args:
            delete: Whether its files go too.
        """
        try:
            await self._end()
        finally:
            if self._root >= 0:
                os.close(self._root)
                self._root = -1
            if delete and self._layout.root.exists():
                await asyncio.to_thread(files.remove, self._layout.root)

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file, or a folder's content, into the sandbox.

        Raises:
            SandboxPathError: If the target is not in a writable folder, or leads through a link.
            SandboxDiskFullError: If the disk is full.
        """
        folder, parts = self._layout.locate(target, self.phase)
        edit = self._localise_script if self.means is Means.PLAIN and target.startswith(_SCRIPTS) else None
        await asyncio.to_thread(files.copy_in, source, folder, parts, self._up.uid, edit)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file, or a folder's content, out of the sandbox; links and special files are left behind.

        Raises:
            FileNotFoundError: If there is nothing.
            SandboxPathError: If the source is not in a writable folder, or leads through a link.
            SandboxDiskFullError: If the disk is full.
        """
        folder, parts = self._layout.locate(source, self.phase)
        await asyncio.to_thread(files.copy_out, folder, parts, target)

    async def num_processes(self) -> int:
        """Processes that run in it now."""
        return await asyncio.to_thread(self._count_processes)

    async def snapshot(self, archive: BinaryIO | None, base: str = "") -> str:
        """Remember the files as they are now; see `interface.Sandbox`."""
        return await asyncio.to_thread(self._files.snapshot, archive, base)

    async def restore(self, archives: Sequence[BinaryIO], snapshot: str) -> None:
        """Make the files what they were in a snapshot."""
        await asyncio.to_thread(self._files.restore, archives, snapshot, self._up.uid)

    async def remember(self) -> None:
        """Take the files, as they are now, for what the agent finds; without it, it finds nothing."""
        await asyncio.to_thread(self._inspector.remember)

    async def findings(self) -> list[Finding]:
        """What is remarkable in what the agent wrote, and in what was undone when its phase ended."""
        return (await asyncio.to_thread(self._inspector.audit)).findings

    async def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        await keeper.end()
        if keeper.up.means is Means.PLAIN:  # the keeper has hunted them down, unless it was killed itself
            await asyncio.to_thread(
                ProcessTable().kill, keeper.up.pid, f"{SANDBOX_VARIABLE}={self._layout.root}".encode()
            )

    async def _ask(self, request: bytes) -> dict[str, Any]:
        answer = b""
        with suppress(ConnectionError, FileNotFoundError):
            reader, writer = await asyncio.open_unix_connection(self._socket(COMMANDS), limit=MAX_LINE_BYTES)
            try:
                writer.write(request)
                answer = await reader.readline()
            finally:
                writer.close()
        if not answer.endswith(b"\n"):
            raise SandboxDiedError(await self._last_words() or "the sandbox ended while a command ran")
        result: dict[str, Any] = json.loads(answer)
        return result

    async def _last_words(self) -> str:
        """Why the keeper ended the sandbox, if it was the keeper and not the other way round."""
        if self._keeper is None:
            return ""
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(_WORDS_SECONDS):
                said = await asyncio.get_running_loop().sock_recv(self._keeper.connection, 1 << 16)
                return str(json.loads(said)["error"])
        return ""

    def _count_processes(self) -> int:
        """What the keeper started, and what has come to the first process of its namespaces."""
        table = ProcessTable()
        try:
            return len(table.family(self._up.pid) | table.family(self.pid))
        finally:
            os.close(table.proc)

    def _socket(self, name: str) -> Path:
        return Path(f"/proc/self/fd/{self._root}", SOCKETS, name)

    def _localise_script(self, data: bytes) -> bytes:
        """A script as plain processes need it; what is not text stays."""
        try:
            return self._localise(data.decode()).encode()
        except UnicodeDecodeError:
            return data

    def _localise(self, text: str) -> str:
        return self._layout.localise(text, self.phase) if self.means is Means.PLAIN else text


async def _receive_up(connection: socket.socket) -> SandboxUp:
    """What a keeper says once it is ready.

    Raises:
        SandboxStartError: If it says why it cannot, or dies.
        SandboxDiskFullError: If there is no room.
    """
    answer = b""
    while not answer.endswith(b"\n"):
        part = await asyncio.get_running_loop().sock_recv(connection, 1 << 16)
        if not part:
            raise SandboxStartError("the sandbox's keeper died while it brought the sandbox up")
        answer += part
    facts = json.loads(answer)
    if "error" in facts:
        if facts.get("errno") in {errno.ENOSPC, errno.EDQUOT}:
            raise SandboxDiskFullError(facts["error"])
        raise SandboxStartError(facts["error"])
    return SandboxUp(**facts | {"means": Means(facts["means"])})
