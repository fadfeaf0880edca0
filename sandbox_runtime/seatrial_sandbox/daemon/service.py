"""The gRPC service: what each call does with the sandbox."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from shutil import disk_usage
from typing import override

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.protos.sandboxd_pb2_grpc import SandboxdServicer
from seatrial_api.sandbox_token import Method, Phase
from seatrial_sandbox.daemon.admission import Context, Gate, admitted
from seatrial_sandbox.daemon.downloads import offer_tree, send_archive, send_file
from seatrial_sandbox.daemon.inspection import diff, examine
from seatrial_sandbox.daemon.listening import listen
from seatrial_sandbox.daemon.sessions import relay, server_of
from seatrial_sandbox.daemon.uploads import deliver
from seatrial_sandbox.streaming import Stream

_PHASES = {Phase.AGENT: pb.PHASE_AGENT, Phase.VERIFY: pb.PHASE_VERIFY}


@dataclass(slots=True, eq=False)
class Service(SandboxdServicer):
    """The calls of one sandbox."""

    gate: Gate
    started_at: float
    """Point on the sandbox's clock."""

    @override
    @admitted(Method.HEALTH)
    async def Health(self, request: pb.HealthRequest, context: Context) -> pb.HealthResponse:
        sandbox = self.gate.sandbox
        return pb.HealthResponse(
            sandbox=self.gate.authority.sandbox,
            phase=_PHASES[sandbox.phase],
            trial=self.gate.authority.trial,
            version=version("seatrial-sandbox"),
            uptime_seconds=sandbox.clock.now() - self.started_at,
            processes=sandbox.num_processes,
            disk_free_bytes=disk_usage(sandbox.config.workdir).free,
            mcp_servers=[server.name for server in sandbox.servers],
            workdir=sandbox.config.workdir,
            awaits_task=any(server.starts_with_task for server in sandbox.servers),
        )

    @override
    @admitted(Method.EXEC)
    async def Exec(self, request: pb.ExecRequest, context: Context) -> None:  # type: ignore[override]  # it streams by writing
        async def emit(stream: Stream, data: bytes) -> None:
            is_error = stream is Stream.STDERR
            await context.write(pb.ExecResponse(stderr=data) if is_error else pb.ExecResponse(stdout=data))

        ended = await self.gate.sandbox.exec(request, emit)
        facts = pb.ExecExit(
            return_code=ended.return_code,
            timed_out=ended.timed_out,
            stdout_dropped_bytes=ended.dropped[Stream.STDOUT],
            stderr_dropped_bytes=ended.dropped[Stream.STDERR],
        )
        await context.write(pb.ExecResponse(exit=facts))

    @override
    @admitted(Method.UPLOAD)
    async def Upload(self, requests: AsyncIterator[pb.UploadRequest], context: Context) -> pb.UploadResponse:
        sandbox = self.gate.sandbox
        first = await anext(requests, pb.UploadRequest())
        start = first.start
        upload, stream = sandbox.transfers.open_upload(start.upload, start.size, start.sha256, start.offset)
        async for request in requests:
            upload.write(request.data, stream)
        if not upload.is_done:
            upload.check_complete()
            try:
                upload.check_content()
                await sandbox.threads.run(partial(deliver, start, upload.file, sandbox.layout, sandbox.phase))
            except BaseException:  # it cannot be gone on with
                sandbox.transfers.drop_upload(start.upload)
                raise
            sandbox.transfers.finish_upload(start.upload, keep=start.HasField("archive"))
        return pb.UploadResponse(size=start.size)

    @override
    @admitted(Method.UPLOAD_OFFSET)
    async def UploadOffset(self, request: pb.UploadOffsetRequest, context: Context) -> pb.UploadOffsetResponse:
        upload = self.gate.sandbox.transfers.uploads.get(request.upload)
        return pb.UploadOffsetResponse(offset=upload.received if upload else 0)

    @override
    @admitted(Method.DOWNLOAD)
    async def Download(self, request: pb.DownloadRequest, context: Context) -> None:  # type: ignore[override]  # it streams by writing
        sandbox = self.gate.sandbox
        name = request.archive
        if request.HasField("path"):
            folder, parts = sandbox.layout.locate(request.path, sandbox.phase)
            if await send_file(folder, parts, request, context):
                return
            name = request.version or await offer_tree(sandbox, folder, parts)
        await send_archive(name, sandbox.transfers.offered(name), request, context)

    @override
    @admitted(Method.SNAPSHOT)
    async def Snapshot(self, request: pb.SnapshotRequest, context: Context) -> pb.SnapshotResponse:
        sandbox = self.gate.sandbox
        state, packed = await sandbox.snapshot(request.base, manifest_only=request.manifest_only)
        response = pb.SnapshotResponse(
            snapshot=state.snapshot, files=len(state.hashes), bytes=state.total_bytes, omitted=state.omitted
        )
        if packed is not None:
            response.archive = sandbox.transfers.offer(packed.file)
            response.archive_bytes = sandbox.transfers.offered(response.archive).size
            response.archived_files = packed.blobs
        return response

    @override
    @admitted(Method.RESTORE)
    async def Restore(self, request: pb.RestoreRequest, context: Context) -> pb.RestoreResponse:
        state = await self.gate.sandbox.restore(list(request.uploads), request.snapshot)
        return pb.RestoreResponse(files=len(state.hashes), bytes=state.total_bytes)

    @override
    @admitted(Method.DIFF)
    async def Diff(self, request: pb.DiffRequest, context: Context) -> None:  # type: ignore[override]  # it streams by writing
        async with aclosing(diff(self.gate.sandbox, request)) as responses:
            async for response in responses:
                await context.write(response)

    @override
    @admitted(Method.FREEZE)
    async def Freeze(self, request: pb.FreezeRequest, context: Context) -> pb.FreezeResponse:
        frozen = await self.gate.freeze()
        return pb.FreezeResponse(killed_processes=frozen.killed_processes, removed_paths=frozen.removed_paths)

    @override
    @admitted(Method.AUDIT)
    async def Audit(self, request: pb.AuditRequest, context: Context) -> None:  # type: ignore[override]  # it streams by writing
        async with aclosing(examine(self.gate.sandbox, request)) as responses:
            async for response in responses:
                await context.write(response)

    @override
    @admitted(Method.CONNECT)
    async def Connect(self, requests: AsyncIterator[pb.ConnectRequest], context: Context) -> None:  # type: ignore[override]  # it streams by writing
        await relay(await self.gate.sandbox.connect(server_of(context)), requests, context)

    @override
    @admitted(Method.LISTEN)
    async def Listen(self, requests: AsyncIterator[pb.ListenRequest], context: Context) -> None:  # type: ignore[override]  # it streams by writing
        await listen(requests, context)
