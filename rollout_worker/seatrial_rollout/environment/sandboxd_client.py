"""Client of `sandboxd`: typed calls with deadlines, and transfers that go on after a broken connection."""

import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from grpc import aio

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.protos.sandboxd_pb2_grpc import SandboxdStub
from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.calls import (
    CALL_SECONDS,
    CHANNEL_OPTIONS,
    WORK_SECONDS,
    is_broken,
    metadata,
    translate,
    translated,
)
from seatrial_rollout.environment.listening import serving
from seatrial_rollout.environment.loopback import Serve
from seatrial_rollout.environment.relay import relayed
from seatrial_sandbox.errors import SandboxDataError, SandboxDiedError, SandboxStateError
from seatrial_sandbox.server_spec import SERVER_KEY
from seatrial_sandbox.transport import Streams

if TYPE_CHECKING:
    from seatrial_api.protos.sandboxd_pb2_grpc import SandboxdAsyncStub  # in the stubs alone

CHUNK_BYTES = 512 * 1024
"""Bytes in one message of a transfer."""
_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.1
_EXEC_SECONDS = 6 * 3600.0
_EXEC_GRACE_SECONDS = 60.0
_SESSION_SECONDS = 24 * 3600.0

type Tokens = Callable[[Phase], str]
"""Gives a token of a phase that holds now."""
type OnOutput = Callable[[bytes, bool], Awaitable[None]]
"""Takes output of a command, and whether it is of stderr."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a sandbox's files."""

    name: str
    """Equal states have equal names."""
    files: int
    bytes: int
    archive_bytes: int
    """Size of the archive that was fetched."""
    omitted: int
    """Files and folders that were left out, being too many or nested too deep."""


@dataclass(slots=True)
class SandboxdClient:
    """One sandbox's daemon; it holds a connection from the first call to `close`."""

    address: str
    tokens: Tokens
    clock: Clock = SYSTEM_CLOCK
    phase: Phase = field(default=Phase.AGENT, init=False)
    """Phase for which calls show a token; `freeze` is what changes it."""
    _channel: aio.Channel | None = field(default=None, init=False)

    async def close(self) -> None:
        """Hang up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def health(self) -> pb.HealthResponse:
        """Facts about the sandbox."""
        with translated("asking for the sandbox's health"):
            return await self._stub.Health(pb.HealthRequest(), metadata=self._shown, timeout=CALL_SECONDS)

    async def exec(self, request: pb.ExecRequest, on_output: OnOutput) -> pb.ExecExit:
        """Run a command; it is never tried twice.

        Raises:
            SandboxDiedError: If the sandbox ended, or is out of reach, before the command did.
            SandboxError: If the command cannot be started.
        """
        seconds = request.timeout_seconds + _EXEC_GRACE_SECONDS if request.timeout_seconds else _EXEC_SECONDS
        with translated("running a command"):
            call = self._stub.Exec(request, metadata=self._shown, timeout=seconds)
            try:
                async for response in call:
                    match response.WhichOneof("event"):
                        case "stdout":
                            await on_output(response.stdout, False)  # noqa: FBT003  as its type says
                        case "stderr":
                            await on_output(response.stderr, True)  # noqa: FBT003
                        case _:
                            return response.exit
            finally:
                call.cancel()
        raise SandboxDiedError("the sandbox ended while a command ran")

    async def upload(
        self, content: BinaryIO, target: pb.FileTarget | pb.TreeTarget | pb.ArchiveTarget, seconds: float = WORK_SECONDS
    ) -> str:
        """Send a file's bytes, going on where a broken connection stopped; returns the upload's name.

        Args:
            content: A file that can be read again from any place.
            target: What the bytes are for.
            seconds: Time for all tries together.

        Raises:
            SandboxPathError: If the target may not be written, or leads through a link.
            SandboxDataError: If the bytes are not what the target needs.
            SandboxDiedError: If the sandbox does not answer any more.
        """
        size, digest = _measure(content)
        start = pb.UploadStart(upload=uuid.uuid4().hex, size=size, sha256=digest)
        match target:
            case pb.FileTarget():
                start.file.CopyFrom(target)
            case pb.TreeTarget():
                start.tree.CopyFrom(target)
            case _:
                start.archive.CopyFrom(target)
        deadline = Deadline.after(seconds, self.clock)

        async def attempt() -> None:
            asked = pb.UploadOffsetRequest(upload=start.upload)
            known = await self._stub.UploadOffset(asked, metadata=self._shown, timeout=CALL_SECONDS)
            start.offset = known.offset
            sending = _upload_requests(start, content)
            await self._stub.Upload(sending, metadata=self._shown, timeout=deadline.remaining)

        await self._persist(attempt, deadline, "uploading")
        return start.upload

    async def download(
        self, request: pb.DownloadRequest, content: BinaryIO, seconds: float = WORK_SECONDS
    ) -> pb.DownloadStart:
        """Fetch bytes into an empty file, going on where a broken connection stopped.

        Args:
            request: What to fetch.
            content: Where to.
            seconds: Time for all tries together.

        Raises:
            FileNotFoundError: If there is nothing.
            SandboxPathError: If it may not be read, or lies behind a link.
            SandboxDataError: If the checksum differs every time.
            SandboxDiedError: If the sandbox does not answer any more.
        """
        deadline = Deadline.after(seconds, self.clock)
        start = pb.DownloadStart()

        async def attempt() -> None:
            request.offset = content.seek(0, 2)
            request.version = start.version
            call = self._stub.Download(request, metadata=self._shown, timeout=deadline.remaining)
            try:
                async for response in call:
                    match response.WhichOneof("event"):
                        case "start":
                            start.CopyFrom(response.start)
                        case "data":
                            content.write(response.data)
                        case _ if _measure(content) == (start.size, response.end.sha256):
                            return
                        case _:
                            _begin_anew(content, start)
                            raise SandboxDataError("downloading: the checksum differs")
            finally:
                call.cancel()
            raise SandboxDataError("downloading: the end is missing")

        def on_state_error() -> None:
            _begin_anew(content, start)

        await self._persist(attempt, deadline, "downloading", on_state_error)
        return start

    async def snapshot(self, target: BinaryIO | None, base: str = "") -> Snapshot:
        """Remember the files as they are.

        Args:
            target: Empty file for the archive; none if only the sandbox is to remember.
            base: Snapshot whose contents the archive may leave out.

        Raises:
            SandboxStateError: If the base is not known.
        """
        with translated("taking a snapshot"):
            request = pb.SnapshotRequest(base=base, manifest_only=target is None)
            found = await self._stub.Snapshot(request, metadata=self._shown, timeout=WORK_SECONDS)
        if target is not None:
            await self.download(pb.DownloadRequest(archive=found.archive), target)
        return Snapshot(found.snapshot, found.files, found.bytes, found.archive_bytes, found.omitted)

    async def restore(self, archives: Sequence[BinaryIO], snapshot: str) -> None:
        """Put the files back as they were in a snapshot.

        Args:
            archives: Its archive after those of its bases, the oldest first.
            snapshot: Its name.

        Raises:
            SandboxStateError: If a content is in none of them.
            SandboxDataError: If one is damaged, or not the snapshot's.
        """
        uploads = [await self.upload(archive, pb.ArchiveTarget()) for archive in archives]
        with translated("restoring a snapshot"):
            request = pb.RestoreRequest(uploads=uploads, snapshot=snapshot)
            await self._stub.Restore(request, metadata=self._shown, timeout=WORK_SECONDS)

    async def freeze(self) -> pb.FreezeResponse:
        """Kill every process that the agent has left and begin phase Verify."""
        self.phase = Phase.VERIFY
        with translated("beginning verification"):
            return await self._stub.Freeze(pb.FreezeRequest(), metadata=self._shown, timeout=CALL_SECONDS)

    async def diff(self, request: pb.DiffRequest) -> tuple[list[pb.Change], pb.DiffSummary]:
        """What was added, changed and removed since a snapshot.

        Raises:
            SandboxStateError: If the snapshot is not known.
        """
        changes: list[pb.Change] = []
        with translated("comparing with a snapshot"):
            async for response in self._stub.Diff(request, metadata=self._shown, timeout=WORK_SECONDS):
                if response.HasField("summary"):
                    return changes, response.summary
                changes.append(response.change)
        raise SandboxDiedError("the sandbox ended while it compared its files")

    async def audit(self, request: pb.AuditRequest) -> tuple[list[pb.Finding], pb.AuditSummary]:
        """What is remarkable in what the agent wrote since a snapshot.

        Raises:
            SandboxStateError: If the snapshot is not known.
        """
        findings: list[pb.Finding] = []
        with translated("auditing"):
            async for response in self._stub.Audit(request, metadata=self._shown, timeout=WORK_SECONDS):
                if response.HasField("summary"):
                    return findings, response.summary
                findings.append(response.finding)
        raise SandboxDiedError("the sandbox ended while it was audited")

    @asynccontextmanager
    async def connect(self, server: str) -> AsyncIterator[Streams]:
        """A transport to an MCP server, for `mcp.Client`.

        Raises:
            SandboxError: If there is no such server in this phase.
            SandboxDiedError: If the sandbox does not answer.
        """
        with translated(f"connecting to MCP server {server!r}"):
            named = (*self._shown, (SERVER_KEY, server))
            call = self._stub.Connect(metadata=named, timeout=_SESSION_SECONDS)
            try:
                opened = await call.initial_metadata()
                if not dict(opened or ()):
                    await call.read()  # raises what ended it
            except BaseException:
                call.cancel()
                raise
        async with relayed(call) as streams:
            yield streams

    @asynccontextmanager
    async def listen(self, serve: Serve) -> AsyncIterator[int]:
        """Serve a port on the sandbox's own loopback while the block runs; yields its number.

        Raises:
            SandboxDiedError: If the sandbox does not answer.
        """
        with translated("opening a port"):
            call = self._stub.Listen(metadata=self._shown, timeout=_SESSION_SECONDS)
            try:
                opened = await call.read()
            except BaseException:
                call.cancel()
                raise
        if not isinstance(opened, pb.ListenResponse):
            raise SandboxDiedError("the sandbox ended before it could open a port")
        async with serving(call, serve):
            yield opened.port

    @property
    def _stub(self) -> "SandboxdAsyncStub":
        if self._channel is None:
            self._channel = aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        return SandboxdStub(self._channel)

    @property
    def _shown(self) -> tuple[tuple[str, str], ...]:
        return metadata(self.tokens(self.phase))

    async def _persist(
        self,
        attempt: Callable[[], Awaitable[None]],
        deadline: Deadline,
        doing: str,
        on_state_error: Callable[[], None] = lambda: None,
    ) -> None:
        """Try a transfer until it succeeds, is refused, or the tries or the time are used up."""
        pause = _FIRST_PAUSE_SECONDS
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await attempt()
            except aio.AioRpcError as error:
                failure = translate(error, doing)
                is_stale = isinstance(failure, SandboxStateError)
                if not left or deadline.remaining <= pause or not (is_broken(error) or is_stale):
                    raise failure from error
                if is_stale:
                    on_state_error()
            except SandboxDataError:
                if not left or deadline.remaining <= pause:
                    raise
            await self.clock.sleep(pause)
            pause *= 2
        return None


def _measure(content: BinaryIO) -> tuple[int, bytes]:
    content.seek(0)
    digest = hashlib.sha256()
    size = 0
    while data := content.read(CHUNK_BYTES):
        digest.update(data)
        size += len(data)
    return size, digest.digest()


def _begin_anew(content: BinaryIO, start: pb.DownloadStart) -> None:
    content.seek(0)
    content.truncate()
    start.Clear()


async def _upload_requests(start: pb.UploadStart, content: BinaryIO) -> AsyncIterator[pb.UploadRequest]:
    yield pb.UploadRequest(start=start)
    content.seek(start.offset)
    while data := content.read(CHUNK_BYTES):
        yield pb.UploadRequest(data=data)
