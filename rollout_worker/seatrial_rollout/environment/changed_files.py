"""What an agent changed, told by the sandbox: it knows the world as it was, and reads documents where they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_rollout.environment.sandboxd_client import SandboxdClient
from seatrial_sandbox.documents.extract import Extract
from seatrial_sandbox.documents.part import Part
from seatrial_sandbox.state.changes import ChangeKind

_KINDS = {
    pb.Change.KIND_ADDED: ChangeKind.ADDED,
    pb.Change.KIND_CHANGED: ChangeKind.CHANGED,
    pb.Change.KIND_REMOVED: ChangeKind.REMOVED,
}


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file of the workdir that is not as it was before the agent began."""

    kind: ChangeKind
    path: str
    """Below the workdir."""
    size: int
    """Bytes; of one that was removed, before."""
    extract: Extract | None
    """What it says now, if its type is known."""


@runtime_checkable
class TellsChanges(Protocol):
    """An environment whose sandboxes tell what an agent changed."""

    async def changed_files(self) -> Sequence[ChangedFile]:
        """Files of the workdir, in phase Verify."""
        ...


async def changed_files(client: SandboxdClient, workdir: str) -> list[ChangedFile]:
    """Ask a sandbox in phase Verify.

    Raises:
        SandboxStateError: If it was not told to remember the world as it was.
        SandboxDiedError: If it does not answer.
    """
    changes, _ = await client.diff(pb.DiffRequest(extract=True))
    return [_changed_file(change, workdir) for change in changes if _is_inside(change, workdir)]


def _is_inside(change: pb.Change, workdir: str) -> bool:
    is_file = pb.Entry.TYPE_FILE in {change.before.type, change.after.type}
    is_same = change.before.sha256 == change.after.sha256
    return is_file and not is_same and PurePosixPath(change.path).is_relative_to(workdir)


def _changed_file(change: pb.Change, workdir: str) -> ChangedFile:
    told = change.extract
    parts = tuple(Part(part.title, part.text, tuple(tuple(row.cells) for row in part.rows)) for part in told.parts)
    return ChangedFile(
        kind=_KINDS[change.kind],
        path=str(PurePosixPath(change.path).relative_to(workdir)),
        size=change.after.size if change.HasField("after") else change.before.size,
        extract=Extract(told.media_type, parts, told.truncated, told.error) if change.HasField("extract") else None,
    )
