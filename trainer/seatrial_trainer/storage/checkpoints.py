"""Checkpoints: atomic, verified when read, bounded in number."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from seatrial_api.errors import CorruptionError
from seatrial_trainer.storage.atomic import publishing, write_atomic
from seatrial_trainer.storage.files import DISK, Files
from seatrial_trainer.storage.manifest import CheckpointManifest, file_digest

_log = structlog.get_logger(__name__)
MANIFEST_FILE = "MANIFEST.json"
"""Written last."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was verified."""

    path: Path
    manifest: CheckpointManifest

    @property
    def policy(self) -> Path:
        """What the policy backend saved: weights, optimiser, RNG."""
        return self.path / "policy"

    @property
    def model(self) -> Path:
        """The weights in Hugging Face layout, as engines load them."""
        return self.path / "model"


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """Checkpoints of one stage, by version."""

    root: Path
    check_owner: Callable[[], None] = lambda: None
    """Raises if the checkpoints are another driver's by now."""
    files: Files = DISK
    """Makes them durable."""

    @contextmanager
    def writing(self, version: int, state: dict[str, Any]) -> Iterator[Path]:
        """Fill the yielded folder; when the block ends the checkpoint appears whole, else not at all.

        Where it lies in an object store it appears there later, before `settle` ends: nobody waits for it meanwhile,
        because an older one and the logged batches lead to the same weights.

        Args:
            version: Weight version of the policy.
            state: State of the driver, as JSON.

        Raises:
            OSError: if the disk is full; older checkpoints are untouched.
            SupersededError: if another driver has taken over; nothing appears then.
        """
        target = self._folder(version)
        with publishing(target) as folder:
            yield folder
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            digests = {str(file.relative_to(folder)): file_digest(file) for file in files}
            manifest = CheckpointManifest(version=version, digests=digests, state=state)
            (folder / MANIFEST_FILE).write_bytes(manifest.sealed())
            self.files.check_before_publishing(self.check_owner)
        self.files.keep_later(*(target / name for name in digests), target / MANIFEST_FILE, check=self.check_owner)

    def settle(self) -> None:
        """Wait until every checkpoint is durable.

        Raises:
            StoreUnavailableError: if an object store does not take it.
        """
        self.files.settle()

    def address(self, checkpoint: Checkpoint) -> str:
        """Where a checkpoint is kept, for a person."""
        return self.files.address(checkpoint.path)

    def score(self, version: int, score: float) -> None:
        """Note the validation result of a stored version."""
        path = self._folder(version)
        manifest = self._read_manifest(version).model_copy(update={"score": score})
        write_atomic(path / MANIFEST_FILE, manifest.sealed())
        self.files.keep_later(path / MANIFEST_FILE, check=self.check_owner)

    def versions(self) -> list[int]:
        """Versions with a manifest, oldest first; they may still turn out damaged."""
        return sorted(int(path.parent.name) for path in self.root.glob(f"[0-9]*/{MANIFEST_FILE}"))

    def open(self, version: int) -> Checkpoint:
        """A checkpoint, verified file by file; what is missing or altered here is first looked for where it is durable.

        Raises:
            CorruptionError: if a file is missing or altered.
        """
        path = self._folder(version)
        manifest = self._read_manifest(version)
        for name, digest in manifest.digests.items():
            file = path / name
            if not _is(file, digest) and not (self.files.fetch(file) and _is(file, digest)):
                raise CorruptionError(f"{file}: missing, or not what was saved; this checkpoint cannot be used")
        return Checkpoint(path, manifest)

    def whole(self, versions: Iterable[int]) -> Iterator[Checkpoint]:
        """These checkpoints, verified one by one; damaged ones are passed over loudly."""
        for version in versions:
            try:
                yield self.open(version)
            except CorruptionError as exc:
                _pass_over(version, exc)

    def choose(self, which: str) -> Checkpoint | None:
        """The `Best` checkpoint if validation scored one, else the `Last`; None where there is none."""
        best = self.best() if which == "Best" else None
        return best or self.latest()

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole."""
        return next(self.whole(reversed(self.versions())), None)

    def set_aside_after(self, checkpoint: Checkpoint | None) -> None:
        """Rename what is newer than the newest whole checkpoint, so that it is neither used nor in the way."""
        whole = checkpoint.manifest.version if checkpoint else -1
        for version in self.versions():
            if version > whole:
                target = self.root / f"damaged-{version:06d}"
                self.files.rename(self._folder(version), target)

    def scores(self) -> dict[int, float]:
        """Validation results by version, of the checkpoints that are kept; damaged ones are passed over loudly."""
        scores = {}
        for version in self.versions():
            try:
                score = self._read_manifest(version).score
            except CorruptionError as exc:
                _pass_over(version, exc)
                continue
            if score is not None:
                scores[version] = score
        return scores

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the highest validation result; the newest among equals."""
        by_score = sorted(self.scores().items(), key=lambda item: (item[1], item[0]), reverse=True)
        return next(self.whole(version for version, _ in by_score), None)

    def prune(self, keep: int) -> None:
        """Keep the newest `keep` checkpoints and the best one.

        Raises:
            SupersededError: if another driver has taken over, which may need what would go.
        """
        self.check_owner()
        best = self.best()
        kept = set(self.versions()[-keep:]) | ({best.manifest.version} if best else set())
        for version in self.versions():
            if version not in kept:
                self.files.remove(self._folder(version))

    def _read_manifest(self, version: int) -> CheckpointManifest:
        path = self._folder(version) / MANIFEST_FILE
        return CheckpointManifest.unsealed(path).of(version, path)

    def _folder(self, version: int) -> Path:
        return self.root / f"{version:06d}"


def _pass_over(version: int, error: CorruptionError) -> None:
    _log.warning("passed over a damaged checkpoint", version=version, error=str(error))


def _is(path: Path, digest: str) -> bool:
    return path.exists() and file_digest(path) == digest
