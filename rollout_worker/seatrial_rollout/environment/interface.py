"""What every sandbox offers, wherever it is."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from seatrial_api.finding import Finding
from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.loopback import Serve
from seatrial_sandbox.transport import Streams


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command left behind."""

    stdout: str
    stderr: str
    return_code: int
    """Exit status; negative for the signal that ended it."""


class Sandbox(Protocol):
    """One sandbox.

    In phase Agent its MCP servers answer, and tests and the verifier's logs do not exist. `kill_all` ends every
    process and begins phase Verify: same files, no MCP servers.
    """

    @property
    def phase(self) -> Phase:
        """Who acts in it now."""
        ...

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a bash command; cancelling kills it with all that it started.

        Raises:
            CommandTimeoutError: If it was killed because its time was up.
            SandboxDiedError: If the sandbox ended meanwhile.
            SandboxError: If the command cannot be started.
        """
        ...

    def connect(self, server: str) -> AbstractAsyncContextManager[Streams]:
        """A transport to an MCP server, for `mcp.Client`.

        Raises:
            SandboxError: If the sandbox has no such server in this phase.
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    def serve_port(self, serve: Serve) -> AbstractAsyncContextManager[int]:
        """Serve a port on its own loopback while the block runs, or until its phase ends; yields its number.

        Raises:
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    async def kill_all(self) -> None:
        """End every process that the agent has left, then begin phase Verify."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file, or a folder's content, into the sandbox.

        Raises:
            SandboxPathError: If the target is not in a writable folder, or leads through a link.
            SandboxDiskFullError: If the disk is full.
        """
        ...

    async def download(self, source: str, target: Path) -> None:
        """Copy a file, or a folder's content, out of the sandbox; links and special files are left behind.

        Raises:
            FileNotFoundError: If there is nothing.
            SandboxPathError: If the source is not in a writable folder, or leads through a link.
        """
        ...

    async def num_processes(self) -> int:
        """Processes that run in it now, those that serve it included.

        Raises:
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    async def remember(self) -> None:
        """Take the files, as they are now, for what the agent finds.

        Raises:
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    async def findings(self) -> list[Finding]:
        """What is remarkable in what the agent has done since, in phase Verify.

        Raises:
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    async def snapshot(self, archive: BinaryIO | None, base: str = "") -> str:
        """Remember the files that the agent may write as they are now.

        Args:
            archive: Empty file for those contents that the base does not have; none if only to remember.
            base: Name of the newest snapshot before; none if empty.

        Returns:
            The snapshot's name; equal states have equal names.

        Raises:
            SandboxStateError: If the base is not known.
            SandboxLimitError: If there is too much.
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    async def restore(self, archives: Sequence[BinaryIO], snapshot: str) -> None:
        """Make the files what they were in a snapshot, of this sandbox or of another.

        Args:
            archives: Of the snapshot's bases, the oldest first, then its own.
            snapshot: Its name.

        Raises:
            SandboxStateError: If a content is neither in the archives nor in the sandbox.
            SandboxDataError: If an archive is damaged.
            SandboxDiedError: If the sandbox has ended.
        """
        ...

    async def stop(self, *, delete: bool = True) -> None:
        """End the sandbox; doing so twice does no harm."""
        ...
