"""OCI archives: a tar of an OCI image layout, as `seatrial world build`, skopeo and Docker from 25 on write it."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from seatrial_api.errors import InvalidInputError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
INDEXES = frozenset({INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"})
"""Media types of what lists manifests."""
_MAX_RECORD_BYTES = 4 << 20
"""Largest manifest or configuration of an image."""

type Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OciArchive:
    """An archive that is read."""

    tar: tarfile.TarFile
    path: Path

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> "Iterator[OciArchive]":
        """The archive of a path, for as long as it is read.

        Raises:
            InvalidInputError: If it is none, also where that is seen later.
        """
        try:
            with tarfile.open(path) as tar:
                yield cls(tar, path)
        except (tarfile.TarError, OSError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{path} is not an OCI archive ({type(error).__name__}); `skopeo copy docker://IMAGE"
                " oci-archive:base.tar` makes one"
            ) from error

    def index(self) -> Record:
        """Which images there are."""
        return self._json("index.json")

    def manifest(self, architecture: str) -> Record:
        """The manifest of an architecture; indexes may be nested."""
        found = self._manifests(self.index())
        fitting = [one for one in found if one.get("platform", {}).get("architecture", architecture) == architecture]
        if len(fitting) != 1:
            known = ", ".join(str(one.get("platform", {}).get("architecture", "?")) for one in found)
            raise InvalidInputError(
                f"{self.path} holds {len(fitting)} images for {architecture}, not one; it has: {known or 'none'}"
            )
        return self.record(fitting[0])

    def record(self, descriptor: Record) -> Record:
        """What a descriptor of JSON refers to."""
        return self._json(blob_name(descriptor))

    def blob(self, descriptor: Record) -> IO[bytes]:
        """What any descriptor refers to."""
        return self._open(blob_name(descriptor))

    def content(self, name: str) -> bytes:
        """A record as its bytes are."""
        return self._open(name).read(_MAX_RECORD_BYTES)

    def _manifests(self, index: Record) -> list[Record]:
        found: list[Record] = []
        for one in index["manifests"]:
            found += self._manifests(self.record(one)) if one["mediaType"] in INDEXES else [one]
        return found

    def _json(self, name: str) -> Record:
        record: Record = json.loads(self.content(name))
        return record

    def _open(self, name: str) -> IO[bytes]:
        content = self.tar.extractfile(name)
        if content is None:
            raise ValueError(name)
        return content


def blob_name(descriptor: Record) -> str:
    """Path of a blob in the archive."""
    return f"blobs/{str(descriptor['digest']).replace(':', '/')}"
