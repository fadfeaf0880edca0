"""Our records as protobuf messages."""

from seatrial_api.finding import Finding, FindingKind
from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_sandbox.documents.extract import Extract
from seatrial_sandbox.state.changes import Change, ChangeKind
from seatrial_sandbox.state.manifest import Entry, EntryType
from seatrial_sandbox.text import printable

CHANGES = {
    ChangeKind.ADDED: pb.Change.KIND_ADDED,
    ChangeKind.CHANGED: pb.Change.KIND_CHANGED,
    ChangeKind.REMOVED: pb.Change.KIND_REMOVED,
}
ENTRIES = {
    EntryType.FILE: pb.Entry.TYPE_FILE,
    EntryType.FOLDER: pb.Entry.TYPE_FOLDER,
    EntryType.LINK: pb.Entry.TYPE_LINK,
    EntryType.SPECIAL: pb.Entry.TYPE_SPECIAL,
}


FINDINGS = {kind: pb.Finding.Kind.Value(f"KIND_{kind.name}") for kind in FindingKind}


def change_message(change: Change, extract: Extract | None) -> pb.Change:
    """A change, and what the file says now."""
    return pb.Change(
        kind=CHANGES[change.kind],
        path=_absolute(change.path),
        before=None if change.before is None else _entry(change.before),
        after=None if change.after is None else _entry(change.after),
        extract=None if extract is None else _extract(extract),
    )


def finding_message(finding: Finding) -> pb.Finding:
    """A finding."""
    return pb.Finding(kind=FINDINGS[finding.kind], path=finding.path, detail=finding.detail)


def _entry(entry: Entry) -> pb.Entry:
    return pb.Entry(
        type=ENTRIES[entry.type], size=entry.size, mode=entry.mode, sha256=entry.sha256, target=printable(entry.target)
    )


def _extract(extract: Extract) -> pb.Extract:
    parts = [
        pb.Part(
            title=printable(part.title),
            text=printable(part.text),
            rows=[pb.Row(cells=[printable(cell) for cell in row]) for row in part.rows],
        )
        for part in extract.parts
    ]
    return pb.Extract(
        media_type=extract.media_type, parts=parts, truncated=extract.truncated, error=printable(extract.error)
    )


def _absolute(path: str) -> str:
    return "/" + printable(path)
