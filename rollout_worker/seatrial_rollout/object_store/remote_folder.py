"""A folder that has the same path in every pod, and in each of them only what that pod wrote or brought.

Pods of a run that is kept in S3 share no volume. What one writes for another goes through the run's prefix, under the
key that its path below the root makes.
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import override

from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.handover import SharedFolder
from seatrial_rollout.object_store.store import ObjectStore, StoredObject

_PARALLEL_FILES = 4


@dataclass(frozen=True)
class RemoteFolder(SharedFolder):
    """The run's folder as its pods hand files to each other; it travels to actors."""

    root: Path
    """Path of the folder in every pod."""
    source: S3Source
    """The run's own prefix."""

    @override
    @contextmanager
    def sending(self, folder: Path) -> Iterator[Path]:
        store, key = self._store, self._key(folder)
        with self._scratch() as scratch:
            yield scratch
            for path in scratch.rglob("*"):
                if path.is_file():
                    store.put(f"{key}{path.relative_to(scratch).as_posix()}", path)

    @override
    @contextmanager
    def bringing(self, folder: Path) -> Iterator[Path]:
        with self._scratch() as scratch:
            self._fetch(self._store, folder, scratch)
            yield scratch

    @override
    def bring(self, folder: Path) -> None:
        if folder.is_relative_to(self.root):  # else it is a model, which every pod has
            self._fetch(self._store, folder, folder)

    @override
    def collect(self, folder: Path) -> None:
        store = self._store
        store.delete([stored.key for stored in self._fetch(store, folder, folder)])

    def _fetch(self, store: ObjectStore, folder: Path, target: Path) -> list[StoredObject]:
        key = self._key(folder)
        objects = list(store.objects(key))

        def fetch(stored: StoredObject) -> None:
            path = target / stored.key.removeprefix(key)
            if not path.exists() or path.stat().st_size != stored.size:
                store.fetch(stored, path)

        with ThreadPoolExecutor(_PARALLEL_FILES) as threads:
            list(threads.map(fetch, objects))
        return objects

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".remote-", dir=self.root) as scratch:
            yield Path(scratch)

    def _key(self, folder: Path) -> str:
        return f"{folder.relative_to(self.root).as_posix()}/"

    @property
    def _store(self) -> ObjectStore:
        return ObjectStore.of(self.source)
