"""The state of a tree of files: what lies where, and the hash of every content."""

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Self

from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxDataError

MAX_ENTRIES = 200_000
"""Most files, folders and links of one state."""
MAX_PATH_BYTES = 4096
_CHUNK_BYTES = 1 << 20
_SETTLED_NS = 1_000_000_000
_PERMISSIONS = 0o7777
_HASH_BYTES = 32


class EntryType(StrEnum):
    """What a path is."""

    FILE = "File"
    FOLDER = "Folder"
    LINK = "Link"
    SPECIAL = "Special"
    """A socket, a pipe or a device: named, never read, never put back."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path's state."""

    type: EntryType
    mode: int
    """Permission bits, set-user-id and the like included."""
    size: int = 0
    """Bytes, of files."""
    sha256: str = ""
    """Of a file's content, in hex."""
    target: str = ""
    """What a link says."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state: its entries by path, in order of path, each after the folder that holds it."""

    entries: Mapping[str, Entry]
    omitted: int = 0
    """Folders and files that were left out, being too many or too deep; no part of the name."""

    @property
    def snapshot(self) -> str:
        """Its name: equal states have equal names."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def hashes(self) -> set[str]:
        """Contents that it refers to."""
        return {entry.sha256 for entry in self.entries.values() if entry.type is EntryType.FILE}

    @property
    def total_bytes(self) -> int:
        """Size of its files, each counted where it lies."""
        return sum(entry.size for entry in self.entries.values())

    def to_json(self) -> bytes:
        """One form for one state; what is no UTF-8 in a name survives."""
        rows = [[path, e.type, e.mode, e.size, e.sha256, e.target] for path, e in self.entries.items()]
        return json.dumps(rows, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """A state from anybody.

        Raises:
            SandboxDataError: If it is none, or paths are not what paths below one folder may be.
        """
        try:
            rows: list[Any] = json.loads(data)
            entries: dict[str, Entry] = {}
            for path, kind, mode, size, sha256, target in rows:
                entry = Entry(EntryType(kind), int(mode) & _PERMISSIONS, int(size), str(sha256), str(target))
                _check(path, entry, entries)
                entries[path] = entry
        except (ValueError, TypeError, RecursionError) as error:
            raise SandboxDataError(f"the archive's list of files cannot be read: {error}") from error
        return cls(entries)


def _check(path: str, entry: Entry, before: Mapping[str, Entry]) -> None:
    """Let a path pass that stays below its root and lies in a folder that came before it.

    Raises:
        ValueError: If it does not.
    """
    parts = PurePosixPath(path).parts
    names_itself = bool(parts) and "/".join(parts) == path and parts[0] != "/" and ".." not in parts
    if not names_itself or "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES or len(parts) > files.MAX_DEPTH:
        raise ValueError(f"{path[:200]!r} is not a path below a folder")
    parent = path.rpartition("/")[0]
    if path in before or (parent and (parent not in before or before[parent].type is not EntryType.FOLDER)):
        raise ValueError(f"{path[:200]!r} lies in no folder, or comes twice")
    if entry.size < 0 or (entry.type is EntryType.FILE and len(bytes.fromhex(entry.sha256)) != _HASH_BYTES):
        raise ValueError(f"{path[:200]!r} has no size or hash")
    if "\0" in entry.target or (entry.type is EntryType.LINK and not entry.target):
        raise ValueError(f"{path[:200]!r} is a link to nowhere")


@dataclass(slots=True)
class Hasher:
    """Hashes files, each content once: a file is known by what only the kernel may write about it."""

    known: dict[tuple[int, ...], str] = field(default_factory=dict)
    now_ns: Callable[[], int] = time.time_ns

    def hash(self, reading: int) -> str:
        """SHA-256 of an open file, in hex."""
        facts = os.fstat(reading)
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        if key not in self.known:
            digest = hash_file(reading)
            if self.now_ns() - facts.st_ctime_ns < _SETTLED_NS:  # it may change again within one tick of the clock
                return digest
            if len(self.known) >= 2 * MAX_ENTRIES:
                self.known.clear()
            self.known[key] = digest
        return self.known[key]


def hash_file(reading: int) -> str:
    """SHA-256 of an open file from its beginning, in hex."""
    digest = hashlib.sha256()
    offset = 0
    while data := os.pread(reading, _CHUNK_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def scan(root: Path | str, hasher: Hasher, *, prefix: str = "") -> Manifest:
    """The state below a folder; no link is followed, and what vanishes meanwhile is left out.

    Args:
        root: The folder.
        hasher: Remembers contents between scans.
        prefix: Path that the folder has in the state; it and those above it become entries.

    Raises:
        OSError: If there is no such folder.
    """
    parts = PurePosixPath(prefix).parts
    entries = {"/".join(parts[: depth + 1]): Entry(EntryType.FOLDER, 0o755) for depth in range(len(parts))}
    walk = _Walk(hasher, entries)
    with files.open_folder(root, ()) as folder:
        walk.enter(folder, prefix, len(parts))
    return Manifest(entries, walk.omitted)


def merged(states: Iterable[Manifest]) -> Manifest:
    """One state of several that lie side by side."""
    entries: dict[str, Entry] = {}
    omitted = 0
    for state in states:
        entries |= {path: entry for path, entry in state.entries.items() if path not in entries}
        omitted += state.omitted
    return Manifest(dict(sorted(entries.items(), key=lambda item: item[0].split("/"))), omitted)


@dataclass(slots=True)
class _Walk:
    hasher: Hasher
    entries: dict[str, Entry]
    omitted: int = 0

    def enter(self, folder: int, path: str, depth: int) -> None:
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry in found)
        for name in names:
            here = f"{path}/{name}" if path else name
            if depth >= files.MAX_DEPTH or len(self.entries) >= MAX_ENTRIES or len(os.fsencode(here)) > MAX_PATH_BYTES:
                self.omitted += 1
                continue
            with suppress(OSError):  # gone, or changed its kind, while we looked
                self.entries[here] = entry = _entry(name, folder, self.hasher)
                if entry.type is EntryType.FOLDER:
                    with files.unlocked(name, folder), files.open_step(name, folder) as step:
                        self.enter(step, here, depth + 1)


def _entry(name: str, folder: int, hasher: Hasher) -> Entry:
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISDIR(facts.st_mode):
        return Entry(EntryType.FOLDER, mode)
    if stat.S_ISLNK(facts.st_mode):
        return Entry(EntryType.LINK, 0o777, target=os.readlink(name, dir_fd=folder))
    if not stat.S_ISREG(facts.st_mode):
        return Entry(EntryType.SPECIAL, mode)
    with files.unlocked(name, folder), files.opened(name, folder) as reading:
        return Entry(EntryType.FILE, mode, os.fstat(reading).st_size, hasher.hash(reading))
