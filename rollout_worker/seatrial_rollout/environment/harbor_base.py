"""What our Harbor environments share: a task over one of our sandboxes."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any, override

import structlog
from harbor.environments.base import BaseEnvironment, ExecResult

from seatrial_api.errors import InvalidInputError, WaitTimeoutError
from seatrial_api.finding import Finding
from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.interface import Sandbox
from seatrial_rollout.environment.loopback import Serve
from seatrial_rollout.environment.saved_files import SavedFiles
from seatrial_sandbox.errors import SandboxDiedError, SandboxError
from seatrial_sandbox.layout import TESTS
from seatrial_sandbox.server_spec import McpServerSpec
from seatrial_sandbox.transport import Streams

WORKDIR = "/workspace"
_PROBE_SECONDS = 10.0
"""Time in which a living sandbox runs `true`."""
_MAX_FINDINGS = 100

log = structlog.get_logger(__name__)


class SandboxEnvironment[S: Sandbox](BaseEnvironment):  # type: ignore[misc]  # Harbor's types are not followed
    """Runs a task in a sandbox of ours.

    The task's `environment/files/**` becomes the workdir. There is one user: `user=` is not told apart. Uploading to
    /tests begins verification: every process that the agent left is killed first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take Harbor's arguments."""
        self._sandbox: S | None = None
        self._saved = SavedFiles()
        self._num_processes = 0
        self._findings: list[Finding] = []
        super().__init__(*args, **kwargs)

    @property
    def sandbox(self) -> S:
        """The running sandbox.

        Raises:
            SandboxError: If it was not started, or was stopped.
        """
        if self._sandbox is None:
            raise SandboxError(f"the sandbox of {self.environment_name} is not running")
        return self._sandbox

    @property
    def findings(self) -> Sequence[Finding]:
        """What was remarkable in what the agent did; nothing before verification begins."""
        return self._findings

    @asynccontextmanager
    async def connect(self, server_name: str) -> AsyncIterator[Streams]:
        """A transport to one of the task's MCP servers, for `mcp.Client`."""
        async with self.sandbox.connect(server_name) as streams:
            yield streams

    def serve_port(self, serve: Serve) -> AbstractAsyncContextManager[int]:
        """Serve a port on the sandbox's own loopback while the block runs, or until its phase ends."""
        return self.sandbox.serve_port(serve)

    async def begin_verification(self) -> None:
        """Kill every process that the agent left, look at what it did, and let tests and the verifier's logs appear.

        Once is enough.
        """
        if self.sandbox.phase is Phase.AGENT:
            await self.sandbox.kill_all()
            await self._look()

    @abstractmethod
    async def open_sandbox(self) -> S:
        """A sandbox for the task, without its files."""

    async def begin_saving(self) -> None:
        """Look at the sandbox before anybody acts in it; a later one becomes what was saved last."""
        await self._saved.begin(self.sandbox)
        self._num_processes = await self.sandbox.num_processes()

    async def save(self, *, is_final: bool = False) -> bool:
        """Keep the files as they are now, for `renew`.

        Args:
            is_final: Whether the agent has ended, so that what it left running does not matter any more.

        Returns:
            False if more runs in the sandbox than when it began. What the agent has left running would not be in a
            snapshot; it comes back only if the calls that started it are made again.
        """
        if not is_final and await self.sandbox.num_processes() > self._num_processes:
            return False
        await self._saved.save(self.sandbox, self.trial_paths.trial_dir)
        return True

    async def renew(self) -> None:
        """Give the sandbox up, whatever state it is in, and go on in another with the files as they were saved last.

        Giving it up comes first: a sandbox that is only out of reach must not act any more when the other one does.
        """
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.stop()
        await self.start(force_build=False)
        await self.begin_saving()

    async def is_alive(self) -> bool:
        """Whether the sandbox still runs commands."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self.sandbox.exec("true")
        except (SandboxDiedError, TimeoutError, WaitTimeoutError):
            return False
        except SandboxError:  # it answers, if only that it cannot
            return self._sandbox is not None
        return True

    @override
    async def start(self, force_build: bool) -> None:
        self._sandbox = await self.open_sandbox()
        world = self.environment_dir / "files"
        if world.is_dir():
            await self.sandbox.upload(world, self._workdir)
        await self.sandbox.remember()

    @override
    async def stop(self, delete: bool) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self._saved.close()
        if sandbox is not None:
            await sandbox.stop(delete=delete)

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        done = await self.sandbox.exec(command, cwd=cwd, env=self._merge_env(env), timeout_seconds=timeout_sec)
        if emit := self._output_callback():
            await emit(done.stdout, "stdout")
            await emit(done.stderr, "stderr")
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.return_code)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._upload(Path(source_path), target_path)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._upload(Path(source_dir), target_dir)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self.sandbox.download(source_path, Path(target_path))

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self.sandbox.download(source_dir, Path(target_dir))

    @property
    def _workdir(self) -> str:
        return str(self.task_env_config.workdir or WORKDIR)

    async def _upload(self, source: Path, target: str) -> None:
        if PurePosixPath(target).is_relative_to(TESTS):
            await self.begin_verification()
        await self.sandbox.upload(source, target)

    async def _look(self) -> None:
        """Have the audit; that there is none is never a trial's end."""
        try:
            found = await self.sandbox.findings()
        except SandboxDiedError:
            raise
        except (SandboxError, OSError) as error:
            log.warning("no audit", environment=self.environment_name, error=str(error))
        else:
            self._findings = found[:_MAX_FINDINGS]

    def _server(self, config: Any) -> McpServerSpec:
        if config.transport != "stdio":
            raise InvalidInputError(
                f"task {self.environment_name}: MCP server {config.name!r} is reached by {config.transport}, but"
                ' a sandbox has no network; give it a command (transport = "stdio")'
            )
        return McpServerSpec(config.name, config.command, list(config.args))
