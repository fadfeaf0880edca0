"""Trees on their way: a tar, packed with zstd, of `blobs/<sha256>` and, last, `manifest.json`.

A content is there once, however many files have it, and not at all where the receiver has it already. Whoever reads an
archive trusts nothing in it: sizes, names, hashes and paths are checked before the first file is written.
"""

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import zstandard

from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxDataError, SandboxLimitError, SandboxStateError
from seatrial_sandbox.state.manifest import MAX_ENTRIES, Entry, EntryType, Manifest, hash_file

MAX_UNPACKED_BYTES = 8 * 1024**3
"""Most bytes that one archive may hold."""
_MAX_MANIFEST_BYTES = 256 * 1024**2
_MAX_WINDOW_BYTES = 128 * 1024**2
_MANIFEST = "manifest.json"
_BLOBS = "blobs/"
_CHUNK_BYTES = 1 << 20
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Packed:
    """What is in an archive."""

    manifest: Manifest
    """The state as it was packed: a file that changed after the scan has its newer content here."""
    blobs: int
    """Contents in it."""


def pack(
    state: Manifest, root: Path | str, out: BinaryIO, *, known: Collection[str] = (), spool: Path | None = None
) -> Packed:
    """Write an archive of a state.

    Args:
        state: What to pack, as it was scanned.
        root: Folder that its paths lie below.
        out: Where to.
        known: Hashes of contents that the receiver has.
        spool: Folder for a file at a time; the system's temporary one if none.

    Raises:
        SandboxLimitError: If it is too large.
        SandboxDiskFullError: If the disk is full.
    """
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    entries = dict(state.entries)
    packed: set[str] = set(known)
    with files.sandbox_errors("packing"), compressor.stream_writer(out, closefd=False) as stream:
        budget = MAX_UNPACKED_BYTES
        for path, entry in state.entries.items():
            if entry.type is not EntryType.FILE or entry.sha256 in packed:
                continue
            with _stable_copy(root, path, spool) as copy:
                if copy is None:  # it is gone by now
                    del entries[path]
                    continue
                size = os.fstat(copy.fileno()).st_size
                entries[path] = replace(entry, size=size, sha256=_digest(copy))
                budget -= size
                if budget < 0:
                    raise SandboxLimitError(f"more than {MAX_UNPACKED_BYTES} bytes to pack")
                if entries[path].sha256 not in packed:
                    packed.add(entries[path].sha256)
                    _add(stream, _BLOBS + entries[path].sha256, size, copy)
        manifest = Manifest(entries, state.omitted)
        listing = manifest.to_json()
        with tempfile.TemporaryFile(dir=spool) as copy:
            copy.write(listing)
            _add(stream, _MANIFEST, len(listing), copy)
        stream.write(bytes(2 * tarfile.BLOCKSIZE))
    return Packed(manifest, len(packed) - len(set(known)))


@dataclass(frozen=True, slots=True)
class Checked:
    """An archive that was read to its end and is what it says."""

    manifest: Manifest
    hashes: frozenset[str]
    """Contents that it holds."""


def check(archive: BinaryIO) -> Checked:
    """Read an archive to its end without writing anything.

    Raises:
        SandboxDataError: If it is damaged, or not as `pack` writes it.
        SandboxLimitError: If it unpacks to too much.
    """
    manifest: Manifest | None = None
    hashes = set()
    for name, size, content in _members(archive):
        if name == _MANIFEST:
            if size > _MAX_MANIFEST_BYTES:
                raise SandboxLimitError(f"the archive's list of files has {size} bytes")
            manifest = Manifest.from_json(b"".join(content))
        elif name.startswith(_BLOBS):
            digest = hashlib.sha256()
            for chunk in content:
                digest.update(chunk)
            if digest.hexdigest() != name.removeprefix(_BLOBS):
                raise SandboxDataError(f"a content of the archive has not the hash that names it: {name!r}")
            hashes.add(digest.hexdigest())
        else:
            raise SandboxDataError(f"the archive holds {name[:100]!r}, which does not belong there")
    if manifest is None:
        raise SandboxDataError("the archive has no list of files")
    if manifest.total_bytes > MAX_UNPACKED_BYTES:
        raise SandboxLimitError(f"the archive unpacks to {manifest.total_bytes} bytes; at most {MAX_UNPACKED_BYTES}")
    return Checked(manifest, frozenset(hashes))


def unpack(archives: Sequence[BinaryIO], entries: Mapping[str, Entry], root: Path, parts: Sequence[str] = ()) -> None:
    """Write entries below a folder, from archives that were checked.

    Args:
        archives: Where the contents are; each is read once, from its beginning.
        entries: What to write, each folder before what it holds; what else lies there stays.
        root: Folder of the sandbox.
        parts: Path below it that the entries lie below.

    Raises:
        SandboxStateError: If a content is in none of the archives.
        SandboxPathError: If a path leads through a link.
        SandboxDiskFullError: If the disk is full.
    """
    _make_folders(entries, root, parts)
    _write_files(archives, entries, root, parts)
    for path in reversed(list(entries)):  # folders last, and from within: one may be locked
        entry, place = entries[path], (*parts, *path.split("/"))
        if entry.type is EntryType.LINK:
            files.place_link(entry.target, root, place)
        elif entry.type is EntryType.FOLDER:
            files.set_mode(root, place, entry.mode)


def _make_folders(entries: Mapping[str, Entry], root: Path, parts: Sequence[str]) -> None:
    with files.sandbox_errors("making folders"):
        with files.open_folder(root, parts, make=True):
            pass
        for path, entry in entries.items():
            if entry.type is EntryType.FOLDER:
                with files.open_folder(root, (*parts, *path.split("/")), make=True):
                    pass


def _write_files(archives: Sequence[BinaryIO], entries: Mapping[str, Entry], root: Path, parts: Sequence[str]) -> None:
    wanted: dict[str, list[str]] = {}
    for path, entry in entries.items():
        if entry.type is EntryType.FILE:
            wanted.setdefault(entry.sha256, []).append(path)
    for archive in archives:
        for name, _, content in _members(archive):
            paths = wanted.pop(name.removeprefix(_BLOBS), [])
            if not paths:
                continue
            with tempfile.TemporaryFile() as copy:
                copy.writelines(content)
                copy.flush()
                for path in paths:
                    files.place(copy.fileno(), root, (*parts, *path.split("/")), entries[path].mode)
    if wanted:
        raise SandboxStateError(f"{len(wanted)} contents are in no archive; upload the archives of the bases too")


def _add(stream: zstandard.ZstdCompressionWriter, name: str, size: int, content: BinaryIO) -> None:
    header = tarfile.TarInfo(name)
    header.size = size
    stream.write(header.tobuf(tarfile.USTAR_FORMAT))
    content.seek(0)
    while chunk := content.read(_CHUNK_BYTES):
        stream.write(chunk)
    stream.write(bytes(-size % tarfile.BLOCKSIZE))


def _members(archive: BinaryIO) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Name, size and content of every member; plain files only, whose content must be read before the next."""
    archive.seek(0)
    with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        archive, closefd=False, read_across_frames=False
    ) as stream:
        budget = MAX_UNPACKED_BYTES
        for _ in range(MAX_ENTRIES):
            block = _exactly(stream, tarfile.BLOCKSIZE)
            if not any(block):
                return
            try:
                header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
            except (tarfile.HeaderError, ValueError) as error:
                raise SandboxDataError(f"the archive is damaged: {error}") from error
            budget -= header.size
            if header.type != tarfile.REGTYPE or header.size < 0:
                raise SandboxDataError(f"the archive holds {header.name[:100]!r}, which is no plain file")
            if budget < 0:
                raise SandboxLimitError(f"the archive unpacks to more than {MAX_UNPACKED_BYTES} bytes")
            content = _content(stream, header.size)
            yield header.name, header.size, content
            for _ in content:  # what the caller did not want
                pass
    raise SandboxLimitError(f"the archive holds more than {MAX_ENTRIES} contents")


def _content(stream: zstandard.ZstdDecompressionReader, size: int) -> Iterator[bytes]:
    left = size
    while left:
        chunk = _exactly(stream, min(left, _CHUNK_BYTES))
        left -= len(chunk)
        yield chunk
    _exactly(stream, -size % tarfile.BLOCKSIZE)


def _exactly(stream: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    data = b""
    try:
        while len(data) < size:
            part = stream.read(size - len(data))
            if not part:
                raise SandboxDataError("the archive ends in the middle")
            data += part
    except zstandard.ZstdError as error:
        raise SandboxDataError(f"the archive is damaged: {error}") from error
    return data


@contextmanager
def _stable_copy(root: Path | str, path: str, spool: Path | None) -> Iterator[BinaryIO | None]:
    """A copy that nobody else has; none if there is no such file any more."""
    parts = path.split("/")
    with tempfile.TemporaryFile(dir=spool) as copy:
        try:
            with (
                files.open_folder(root, parts[:-1]) as folder,
                files.unlocked(parts[-1], folder),
                files.opened(parts[-1], folder) as reading,
            ):
                files.copy_bytes(reading, copy.fileno())
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        yield copy


def _digest(copy: BinaryIO) -> str:
    return hash_file(copy.fileno())
