"""What a step is about to train, and what a checkpoint holds besides the policy.

A manifest says of itself whether it is whole: its last field is the digest of all before it. What it names is held
against the digests that it gives.
"""

import hashlib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from seatrial_api.base import ApiModel
from seatrial_api.errors import CorruptionError

_SEAL = b',"sha256":"'
_CHUNK = 1 << 20


class Manifest(ApiModel):
    """A small file on which others rest."""

    version: int
    """Weight version."""

    def sealed(self) -> bytes:
        """The file's content: JSON with its own digest."""
        content = self.model_dump_json(by_alias=True).encode()
        return content[:-1] + _SEAL + _digest(content)

    @classmethod
    def unsealed(cls, path: Path) -> Self:
        """What a file holds.

        Raises:
            CorruptionError: if it is not there, or not what `sealed` gave.
        """
        try:
            content, _, digest = path.read_bytes().rpartition(_SEAL)
            manifest = cls.model_validate_json(content + b"}")
        except (OSError, ValidationError) as exc:
            raise CorruptionError(f"{path}: cannot be read ({exc})") from exc
        if digest != _digest(content + b"}"):
            raise CorruptionError(f"{path}: is not what was written")
        return manifest

    def of(self, version: int, path: Path) -> Self:
        """This manifest, if it is of the version that its place says.

        Raises:
            CorruptionError: if it is of another one.
        """
        if self.version != version:
            raise CorruptionError(f"{path}: is of version {self.version}; it was put where {version} belongs")
        return self


class BatchManifest(Manifest):
    """Written before its step, which starts from `version` and makes the next: the step can be repeated from it."""

    group_ids: list[str]
    """Groups in training order."""
    digests: list[str] = Field(default_factory=list)
    """SHA-256 of each group's file."""
    scheduler: dict[str, Any] = Field(default_factory=dict)
    """State of the scheduler right after it gave out the batch."""


class CheckpointManifest(Manifest):
    """Written last: a checkpoint without it does not exist."""

    digests: dict[str, str]
    """SHA-256 of every file by its relative path."""
    state: dict[str, Any] = Field(default_factory=dict)
    """State of the driver: sampler cursor, counters, guards."""
    score: float | None = None
    """Validation pass@1 of this version, if it was measured."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b'"}'
