"""A folder that is a working copy: what is durable lies in an object store.

    driver ── write ──▶ folder ── put, at once ───────────────▶ store     groups, batch manifests, reports
                          └────── put, behind, in order ───────▶ store     checkpoints (manifest last), step records

The store is the truth. A driver that takes a run over makes the folder equal to it, on the same machine or on another:
a file that only the folder had was never visible to anyone. Big files are brought when somebody opens them.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

import structlog

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.object_store.store import ObjectStore, StoredObject
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.behind import Behind
from seatrial_trainer.storage.files import Files

_log = structlog.get_logger(__name__)

_PARALLEL_FILES = 8


@dataclass(frozen=True)
class Mirror(Files):
    """The files of a folder, kept in an object store."""

    root: Path
    """The working copy."""
    store: ObjectStore
    owned: tuple[str, ...]
    """Folders below the root that hold nothing but what the store has."""
    is_big: Callable[[str], bool]
    """Whether the file of a key is brought only when it is opened."""
    is_left_over: Callable[[str], bool]
    """Whether a key is of something that was never finished."""
    _behind: Behind = field(default_factory=Behind)

    @override
    def write_new(self, path: Path, data: bytes) -> bool:
        self._behind.check()
        write_atomic(path, data)
        return self.store.put_new(self._key(path), data)

    @override
    def keep(self, path: Path) -> None:
        self._behind.check()
        self.store.put(self._key(path), path)

    @override
    def keep_later(self, *paths: Path, check: Callable[[], None] | None = None) -> None:
        *first, last = paths
        for path in first:
            self._put_later(path)
        if check is not None:
            self._behind.do(check)
        self._put_later(last)

    @override
    def check_before_publishing(self, check: Callable[[], None]) -> None:
        """Nobody else sees this folder; `keep_later` checks."""

    @override
    def settle(self) -> None:
        self._behind.settle()

    @override
    def read(self, path: Path) -> bytes:
        return self.store.get(self._key(path))

    @override
    def fetch(self, path: Path) -> bool:
        key = self._key(path)
        stored = next((found for found in self.store.objects(key) if found.key == key), None)
        if stored is not None:
            self._bring(stored)
        return stored is not None

    @override
    def remove(self, path: Path) -> None:
        super().remove(path)
        key = self._key(path)
        self._behind.do(lambda: self.store.delete([stored.key for stored in self._all_of(key)]))

    @override
    def rename(self, path: Path, target: Path) -> None:
        super().rename(path, target)
        source, destination = self._key(path), self._key(target)

        def move() -> None:
            self.store.delete([stored.key for stored in self._all_of(destination)])
            for stored in self._all_of(source):
                self.store.move(stored.key, destination + stored.key.removeprefix(source))

        self._behind.do(move)

    @override
    def restore(self) -> None:
        try:
            if count := self.store.abort_unfinished():
                _log.info("dropped uploads that an earlier driver did not finish", uploads=count)
        except InvalidInputError as error:  # not every role may; the bucket's rules clean up some day
            _log.warning("uploads that an earlier driver did not finish stay", error=str(error))
        stored = self._bring_all()
        self.store.delete([key for key in stored if self.is_left_over(key)])
        for part in self.owned:
            for path in (self.root / part).rglob("*"):
                if path.is_file() and self._key(path) not in stored:
                    path.unlink()

    @override
    def refresh(self) -> None:
        self._bring_all()

    @override
    def address(self, path: Path) -> str:
        return self.store.uri(self._key(path))

    def _bring_all(self) -> set[str]:
        """Bring what is missing or different here, but for big files; returns every key."""
        stored = list(self.store.objects())
        missing = [one for one in stored if not self.is_big(one.key) and not _is_same(self.root / one.key, one)]
        with ThreadPoolExecutor(_PARALLEL_FILES) as threads:
            list(threads.map(self._bring, missing))
        return {one.key for one in stored}

    def _bring(self, stored: StoredObject) -> None:
        path = stored.below(self.root)
        written_at = self.store.fetch(stored, path)
        if written_at is not None:
            os.utime(path, ns=(written_at, written_at))

    def _put_later(self, path: Path) -> None:
        def put() -> None:
            try:
                self.store.put(self._key(path), path)
            except FileNotFoundError:  # a damaged checkpoint is told by whoever opens it
                _log.info("a file was removed before it was stored", path=str(path))

        self._behind.do(put)

    def _all_of(self, key: str) -> Iterable[StoredObject]:
        """The object of a file's key, or all of a folder's; a checkpoint's manifest comes before its files."""
        return [stored for stored in self.store.objects(key) if stored.key == key or stored.key.startswith(f"{key}/")]

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _is_same(path: Path, stored: StoredObject) -> bool:
    """Whether a file is known to be what is stored; an object in parts, or encrypted, is brought again."""
    if not path.is_file() or path.stat().st_size != stored.size:
        return False
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == stored.etag
