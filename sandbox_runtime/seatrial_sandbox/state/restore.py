"""Putting the files back as they were in a snapshot."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxDataError, SandboxPathError, SandboxStateError
from seatrial_sandbox.state import archive
from seatrial_sandbox.state.changes import Change, ChangeKind, changes
from seatrial_sandbox.state.manifest import EntryType, Manifest


def restore(
    archives: Sequence[BinaryIO], snapshot: str, current: Manifest, root: Path, places: Sequence[str]
) -> Manifest:
    """Make the files what they were in a snapshot; nothing is touched before all that is needed is known to be there.

    Args:
        archives: The snapshot's archive, after those of its bases; what has not changed since, or has only got another
            name, is in none of them.
        snapshot: Name of the state that the last archive must hold.
        current: What is there now.
        root: Folder that the paths lie below.
        places: Paths that may be written.

    Returns:
        The state that is there now.

    Raises:
        SandboxDataError: If an archive is damaged, or is not the snapshot's.
        SandboxStateError: If a content is missing.
        SandboxPathError: If the snapshot holds what lies elsewhere.
        SandboxLimitError: If it is too large.
        SandboxDiskFullError: If the disk is full.
    """
    checked = [archive.check(one) for one in archives]
    if not checked or checked[-1].manifest.snapshot != snapshot:
        raise SandboxDataError("the last archive does not hold the snapshot that was asked for")
    wanted = checked[-1].manifest
    for path in wanted.entries:
        if not any(path == place or path.startswith(f"{place}/") or place.startswith(f"{path}/") for place in places):
            raise SandboxPathError(f"the snapshot holds {path!r}, which may not be written")
    found = list(changes(current, wanted))
    entries = {change.path: change.after for change in found if change.after is not None}
    missing = Manifest(entries).hashes.difference(*(one.hashes for one in checked))
    with tempfile.TemporaryFile() as kept:
        missing -= _keep(missing, current, root, kept)
        if missing:
            raise SandboxStateError(f"{len(missing)} contents are in no archive; upload the archives of the bases too")
        _make_room(found, root)
        writable = {path: entry for path, entry in entries.items() if entry.type is not EntryType.SPECIAL}
        archive.unpack([kept, *archives], writable, root)
    return wanted


def _keep(missing: set[str], current: Manifest, root: Path, kept: BinaryIO) -> set[str]:
    """Pack those contents that lie somewhere by now, before anything is removed; returns their hashes."""
    here = {path: e for path, e in current.entries.items() if e.type is EntryType.FILE and e.sha256 in missing}
    return archive.pack(Manifest(here), root, kept).manifest.hashes


def _make_room(found: Sequence[Change], root: Path) -> None:
    for change in reversed(found):  # from within; what becomes another kind of thing goes first
        if change.before is not None and (
            change.kind is ChangeKind.REMOVED
            or (change.after is not None and change.after.type is not change.before.type)
        ):
            files.discard(root, change.path.split("/"))
