"""Sending files and archives, from an offset on."""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_sandbox import files
from seatrial_sandbox.daemon.admission import Context
from seatrial_sandbox.daemon.sandbox import Sandbox
from seatrial_sandbox.daemon.transfers import Outgoing
from seatrial_sandbox.errors import SandboxPathError, SandboxStateError
from seatrial_sandbox.state.archive import pack
from seatrial_sandbox.state.manifest import EntryType, Hasher, Manifest, scan

CHUNK_BYTES = 512 * 1024
"""Bytes in one message."""


async def send_file(folder: Path, parts: Sequence[str], request: pb.DownloadRequest, context: Context) -> bool:
    """Send a file; returns false for a folder.

    Raises:
        FileNotFoundError: If there is nothing.
        SandboxPathError: If it is a link or special, or lies behind a link.
        SandboxStateError: If it has changed since the first try.
    """
    name = parts[-1] if parts else "."
    with files.sandbox_errors("reading"), files.open_folder(folder, parts[:-1]) as parent:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            return False
        if not stat.S_ISREG(mode):
            raise SandboxPathError(f"{request.path!r} is a link or a special file")
        with files.unlocked(name, parent), files.opened(name, parent) as reading:
            facts = os.fstat(reading)
            version = f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ctime_ns}"
            start = pb.DownloadStart(version=version, size=facts.st_size, mode=stat.S_IMODE(facts.st_mode))
            await _send(reading, start, request, context)
    return True


async def send_archive(name: str, archive: Outgoing, request: pb.DownloadRequest, context: Context) -> None:
    """Send an archive.

    Raises:
        SandboxStateError: If another version was asked for.
    """
    start = pb.DownloadStart(version=name, is_tree=request.HasField("path"), size=archive.size)
    await _send(archive.file.fileno(), start, request, context)


async def offer_tree(sandbox: Sandbox, folder: Path, parts: Sequence[str]) -> str:
    """Pack a folder's files and folders for `send_archive`; returns the archive's name.

    Raises:
        SandboxPathError: If the path leads through a link.
        SandboxLimitError: If it is too much.
        SandboxDiskFullError: If the disk is full.
    """
    archive = sandbox.transfers.new_file()

    def build() -> None:
        with files.sandbox_errors("reading"), files.open_folder(folder, parts) as top:
            root = f"/proc/self/fd/{top}/."  # a path would lose its end, and then be a link
            found = scan(root, Hasher())
            plain = {EntryType.FILE, EntryType.FOLDER}
            entries = {path: entry for path, entry in found.entries.items() if entry.type in plain}
            pack(Manifest(entries, found.omitted), root, archive, spool=Path(sandbox.config.spool))
            archive.flush()

    await sandbox.threads.run(build)
    return sandbox.transfers.offer(archive)


async def _send(reading: int, start: pb.DownloadStart, request: pb.DownloadRequest, context: Context) -> None:
    if request.version and request.version != start.version:
        raise SandboxStateError("what is asked for has changed since the download began; begin anew")
    if request.offset > start.size:
        raise SandboxStateError(f"the download goes on at {request.offset}, but there are {start.size} bytes")
    await context.write(pb.DownloadResponse(start=start))
    digest = hashlib.sha256()
    offset = 0
    while offset < start.size:
        data = os.pread(reading, min(CHUNK_BYTES, start.size - offset), offset)
        if not data:
            raise SandboxStateError("the file became shorter while it was read; begin anew")
        digest.update(data)
        unseen = data[max(0, request.offset - offset) :]
        offset += len(data)
        if unseen:
            await context.write(pb.DownloadResponse(data=unseen))
    await context.write(pb.DownloadResponse(end=pb.DownloadEnd(sha256=digest.digest())))
