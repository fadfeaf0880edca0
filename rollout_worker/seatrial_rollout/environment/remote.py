"""A sandbox somewhere else, reached through its daemon."""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO

from seatrial_api.finding import Finding, FindingKind
from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.interface import ExecResult
from seatrial_rollout.environment.loopback import Serve
from seatrial_rollout.environment.sandboxd_client import SandboxdClient
from seatrial_rollout.environment.source import ClaimedSandbox, SandboxSource
from seatrial_sandbox.errors import CommandTimeoutError, SandboxDiedError
from seatrial_sandbox.state import archive
from seatrial_sandbox.state.manifest import Entry, EntryType, Hasher, scan
from seatrial_sandbox.text import HeadTail
from seatrial_sandbox.transport import Streams

_KEPT_BYTES = 1_000_000
_STREAMED_BYTES = 64_000_000
_FILE_MODE = 0o600
_FINDINGS = {pb.Finding.Kind.Value(f"KIND_{kind.name}"): kind for kind in FindingKind}


class RemoteSandbox:
    """One claimed sandbox, from `claim` to `stop`; see `interface.Sandbox`."""

    def __init__(self, source: SandboxSource, claimed: ClaimedSandbox) -> None:
        """Use `claim`."""
        self._source = source
        self._claimed: ClaimedSandbox | None = claimed
        self.client = SandboxdClient(claimed.address, claimed.token)
        self.facts = pb.HealthResponse()
        """What it said of itself when it was claimed."""

    @classmethod
    async def claim(cls, source: SandboxSource, world: str, trial_id: str) -> "RemoteSandbox":
        """Take a sandbox for a trial and remember how its files are, as the base of later diffs.

        Args:
            source: Who gives sandboxes.
            world: What the sandbox holds.
            trial_id: Who takes it.

        Raises:
            SandboxStartError: If there is none to be had.
            SandboxDiedError: If it does not answer; says why if whoever gave it knows.
        """
        sandbox = cls(source, await source.claim(world, trial_id))
        try:
            sandbox.facts = await sandbox.client.health()
        except BaseException as error:
            why = await sandbox.why_lost() if isinstance(error, SandboxDiedError) else ""
            await sandbox.stop()
            if why:
                raise SandboxDiedError(why) from error
            raise
        return sandbox

    @property
    def phase(self) -> Phase:
        """Who acts in it now."""
        return self.client.phase

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> ExecResult:
        """Run a bash command; cancelling kills it with all that it started."""
        kept = {False: HeadTail(_KEPT_BYTES), True: HeadTail(_KEPT_BYTES)}

        async def keep(data: bytes, is_stderr: bool) -> None:
            kept[is_stderr].write(data)

        request = pb.ExecRequest(
            argv=["bash", "-c", command],
            cwd=cwd or "",
            env=dict(env or {}),
            timeout_seconds=timeout_seconds or 0.0,
            max_output_bytes=_STREAMED_BYTES,
        )
        ended = await self.client.exec(request, keep)
        if ended.timed_out:
            raise CommandTimeoutError(command=command, seconds=timeout_seconds or 0.0)
        stdout = kept[False].text() + _cut_note(ended.stdout_dropped_bytes)
        return ExecResult(stdout, kept[True].text() + _cut_note(ended.stderr_dropped_bytes), ended.return_code)

    def connect(self, server: str) -> AbstractAsyncContextManager[Streams]:
        """A transport to an MCP server, for `mcp.Client`."""
        return self.client.connect(server)

    def serve_port(self, serve: Serve) -> AbstractAsyncContextManager[int]:
        """Serve a port on its own loopback while the block runs, or until its phase ends; yields its number."""
        return self.client.listen(serve)

    async def kill_all(self) -> None:
        """End every process that the agent has left, then begin phase Verify."""
        await self.client.freeze()

    async def num_processes(self) -> int:
        """Processes that run in it now."""
        return int((await self.client.health()).processes)

    async def remember(self) -> None:
        """Take the files, as they are now, for what the agent finds; the first to be remembered is what counts."""
        await self.client.snapshot(None)

    async def findings(self) -> list[Finding]:
        """What is remarkable in what the agent has done since."""
        found, _ = await self.client.audit(pb.AuditRequest())
        return [
            Finding(kind=_FINDINGS[one.kind], path=one.path, detail=one.detail)
            for one in found
            if one.kind in _FINDINGS
        ]

    async def snapshot(self, archive: BinaryIO | None, base: str = "") -> str:
        """Remember the files as they are now; see `interface.Sandbox`."""
        return (await self.client.snapshot(archive, base)).name

    async def restore(self, archives: Sequence[BinaryIO], snapshot: str) -> None:
        """Make the files what they were in a snapshot."""
        await self.client.restore(archives, snapshot)

    async def why_lost(self) -> str:
        """Why it is gone, as whoever gave it tells; empty if it is not, or was stopped."""
        return "" if self._claimed is None else await self._claimed.why_lost()

    async def stop(self, *, delete: bool = True) -> None:
        """Hang up and give the sandbox back; doing so twice does no harm.

        Args:
            delete: Whether it is given back now; if not, it stays as it is until its lease ends.
        """
        claimed, self._claimed = self._claimed, None
        await self.client.close()
        if claimed is not None and delete:
            await self._source.release(claimed)

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file, or a folder's content, into the sandbox."""
        with tempfile.TemporaryFile() as packed:
            mode = await asyncio.to_thread(_gather, source, packed)
            if mode is None:
                await self.client.upload(packed, pb.TreeTarget(path=target))
            else:
                await self.client.upload(packed, pb.FileTarget(path=target, mode=mode))

    async def download(self, source: str, target: Path) -> None:
        """Copy a file, or a folder's content, out of the sandbox; links and special files are left behind."""
        with tempfile.TemporaryFile() as content:
            start = await self.client.download(pb.DownloadRequest(path=source), content)
            if start.is_tree:
                await asyncio.to_thread(_unpack, content, target)
            else:
                await asyncio.to_thread(_write, content, target, start.mode)


def _gather(source: Path, packed: BinaryIO) -> int | None:
    """Copy a file and return its permissions, or pack a folder and return nothing."""
    if source.is_dir():
        archive.pack(scan(source, Hasher()), source, packed)
        return None
    with source.open("rb") as reading:
        shutil.copyfileobj(reading, packed)
    return source.stat().st_mode & 0o777


def _unpack(content: BinaryIO, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    entries = archive.check(content).manifest.entries
    plain = {path: _ours(entry) for path, entry in entries.items() if entry.type in {EntryType.FILE, EntryType.FOLDER}}
    archive.unpack([content], plain, target)


def _ours(entry: Entry) -> Entry:
    """An entry with permissions that leave it to us."""
    is_file = entry.type is EntryType.FILE
    return Entry(entry.type, entry.mode & 0o777 | _FILE_MODE if is_file else 0o755, entry.size, entry.sha256)


def _write(content: BinaryIO, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    content.seek(0)
    with target.open("wb") as writing:
        shutil.copyfileobj(content, writing)
    target.chmod(mode & 0o777 | _FILE_MODE)


def _cut_note(dropped: int) -> str:
    return f"\n[... {dropped} bytes left out ...]\n" if dropped else ""
