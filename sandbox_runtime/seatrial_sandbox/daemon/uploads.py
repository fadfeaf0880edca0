"""What becomes of an upload that has arrived."""

from typing import BinaryIO

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.sandbox_token import Phase
from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxDataError, SandboxPathError
from seatrial_sandbox.layout import Layout
from seatrial_sandbox.state.archive import check, unpack
from seatrial_sandbox.state.manifest import EntryType

_DEFAULT_MODE = 0o644


def deliver(start: pb.UploadStart, content: BinaryIO, layout: Layout, phase: Phase) -> None:
    """Put a file or a tree where it belongs; an archive stays where it is.

    Raises:
        SandboxPathError: If the path may not be written, or leads through a link.
        SandboxDataError: If a tree's archive is damaged, or nothing says where to.
        SandboxStateError: If it lacks contents.
        SandboxLimitError: If it unpacks to too much.
        SandboxDiskFullError: If the disk is full.
    """
    match start.WhichOneof("target"):
        case "file":
            folder, parts = layout.locate(start.file.path, phase)
            if not parts:
                raise SandboxPathError(f"{start.file.path!r} is a folder")
            files.place(content.fileno(), folder, parts, start.file.mode & 0o7777 or _DEFAULT_MODE)
        case "tree":
            folder, parts = layout.locate(start.tree.path, phase)
            entries = check(content).manifest.entries
            kept = {path: entry for path, entry in entries.items() if entry.type is not EntryType.SPECIAL}
            unpack([content], kept, folder, parts)
        case "archive":
            pass
        case None:
            raise SandboxDataError("the upload does not say what it is for")
