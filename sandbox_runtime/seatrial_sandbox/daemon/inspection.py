"""Looking at what an agent did: changes with what documents say, and the audit."""

from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import PurePosixPath

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_sandbox.daemon.messages import change_message, finding_message
from seatrial_sandbox.daemon.sandbox import Sandbox
from seatrial_sandbox.documents.extract import Extract, media_type
from seatrial_sandbox.documents.extractor import Extractor
from seatrial_sandbox.state.changes import Change, ChangeKind, changes
from seatrial_sandbox.state.examination import audit, is_file, opened

_DEFAULT_CHANGES = 10_000
_DEFAULT_FINDINGS = 1000
_DEFAULT_EXTRACT_BYTES = 64 * 1024
_MAX_EXTRACT_BYTES = 1024**2
_MAX_EXTRACTS_BYTES = 32 * 1024**2


async def diff(sandbox: Sandbox, request: pb.DiffRequest) -> AsyncGenerator[pb.DiffResponse]:
    """Every change since a snapshot, then the summary.

    Raises:
        SandboxStateError: If the snapshot is not known.
    """
    before = sandbox.remembered(request.snapshot)
    after = await sandbox.state()
    counts: Counter[ChangeKind] = Counter()
    truncated = after.omitted > 0
    left = _MAX_EXTRACTS_BYTES
    per_file = min(request.max_extract_bytes or _DEFAULT_EXTRACT_BYTES, _MAX_EXTRACT_BYTES)
    with Extractor(env=sandbox.marked_environment()) as extractor:
        for change in changes(before, after):
            counts[change.kind] += 1
            if counts.total() > (request.max_changes or _DEFAULT_CHANGES):
                truncated = True
                continue
            extract = None
            if request.extract and media_type(change.path) and is_file(change):
                bound = min(per_file, left)
                extract = await sandbox.threads.run(partial(_extract, sandbox, extractor, change, bound))
                left -= 0 if extract is None else sum(_size(part.text, part.rows) for part in extract.parts)
            yield pb.DiffResponse(change=change_message(change, extract))
    summary = pb.DiffSummary(
        added=counts[ChangeKind.ADDED],
        changed=counts[ChangeKind.CHANGED],
        removed=counts[ChangeKind.REMOVED],
        truncated=truncated,
    )
    yield pb.DiffResponse(summary=summary)


async def examine(sandbox: Sandbox, request: pb.AuditRequest) -> AsyncGenerator[pb.AuditResponse]:
    """Every finding in what was added or changed since a snapshot, then the summary.

    Raises:
        SandboxStateError: If the snapshot is not known.
    """
    before = sandbox.remembered(request.snapshot)
    after = await sandbox.state()
    found = await sandbox.threads.run(partial(audit, sandbox.layout, before, after, sandbox.incidents))
    shown = found.findings[: request.max_findings or _DEFAULT_FINDINGS]
    for finding in shown:
        yield pb.AuditResponse(finding=finding_message(finding))
    summary = pb.AuditSummary(
        files=found.files,
        bytes=found.bytes_by_type.total(),
        bytes_by_type=found.bytes_by_type,
        truncated=len(shown) < len(found.findings) or not found.is_complete,
    )
    yield pb.AuditResponse(summary=summary)


def _extract(sandbox: Sandbox, extractor: Extractor, change: Change, max_bytes: int) -> Extract | None:
    with opened(sandbox.layout, change.path) as document:
        if document is None:
            return None
        return extractor.extract(PurePosixPath(change.path).name, document, max_bytes)


def _size(text: str, rows: tuple[tuple[str, ...], ...]) -> int:
    return len(text) + sum(len(cell) for row in rows for cell in row)
