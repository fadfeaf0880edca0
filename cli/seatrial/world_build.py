"""`seatrial world build`: a folder as an OCI image, alone or upon another one, without a container engine.

The result is an OCI archive: a tar of an OCI image layout. Equal folders make equal bytes, so a world's digest says
whether it has changed.
"""

import gzip
import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

from seatrial.oci_archive import INDEX, MANIFEST, OciArchive, Record, blob_name
from seatrial_api.errors import InvalidInputError

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built."""

    folder: Path
    """Holds the world's files."""
    workdir: str
    """Where they lie in the image, and where its commands start."""
    name: str
    """Name of the image, with a tag."""
    architecture: str
    """As Go names it: `amd64`, `arm64`."""
    base: Path | None = None
    """An OCI archive whose layers come first; none for an image of nothing but files."""


def build_image(order: Order, out: Path) -> str:
    """Write the image; the archive appears whole or not at all.

    Returns:
        Digest of the image's manifest: `sha256:...`.

    Raises:
        InvalidInputError: If the order cannot be carried out: the folder holds what no world should, or the base is no
            OCI archive of this platform.
    """
    if not order.folder.is_dir():
        raise InvalidInputError(f"{order.folder} is not a folder; give the one that holds the world's files")
    if not PurePosixPath(order.workdir).is_absolute():
        raise InvalidInputError(f"--workdir {order.workdir} must begin with /; commands of the image start there")
    if out.is_dir():
        raise InvalidInputError(f"{out} is a folder; name the archive that is to be written")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        unfinished = Path(scratch) / "image.tar"
        with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
            digest = _write(_Archive(tar), order, Path(scratch) / "layer")
        unfinished.rename(out)
    return digest


def _write(archive: "_Archive", order: Order, scratch: Path) -> str:
    archive.text("oci-layout", {"imageLayoutVersion": "1.0.0"})
    config, layers = _base(archive, order)
    diff_id = _write_layer(order, scratch)
    with scratch.open("rb") as content:
        layers = [*layers, archive.blob(_LAYER, content)]
    config["config"] = {**config.get("config", {}), "WorkingDir": order.workdir}
    config["rootfs"] = {"type": "layers", "diff_ids": [*config.get("rootfs", {}).get("diff_ids", []), diff_id]}
    config["history"] = [*config.get("history", []), {"created_by": "seatrial world build"}]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": archive.blob(_CONFIG, _json(config)),
        "layers": layers,
    }
    named = {
        **archive.blob(MANIFEST, _json(manifest)),
        "platform": {"os": "linux", "architecture": order.architecture},
        "annotations": {
            "io.containerd.image.name": order.name,
            "org.opencontainers.image.ref.name": order.name.rpartition(":")[2],
        },
    }
    archive.text("index.json", {"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]})
    return str(named["digest"])


def _base(archive: "_Archive", order: Order) -> tuple[Record, list[Record]]:
    """Configuration and layers to build upon; the layers are copied."""
    if order.base is None:
        return {"os": "linux", "architecture": order.architecture}, []
    with OciArchive.opened(order.base) as base:
        manifest = base.manifest(order.architecture)
        config = base.record(manifest["config"])
        layers = []
        for layer in manifest["layers"]:
            copied = archive.blob(layer["mediaType"], base.blob(layer))
            if copied["digest"] != layer["digest"]:
                raise InvalidInputError(f"{order.base} is damaged: layer {layer['digest']} is {copied['digest']}")
            layers.append(copied)
        return config, layers


def _write_layer(order: Order, scratch: Path) -> str:
    """Write the files as a compressed layer; returns the digest of what it unpacks to."""
    with tempfile.TemporaryFile(dir=scratch.parent) as content:
        with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for parent in reversed(Path(order.workdir.strip("/") or ".").parents):
                _add_folder(tar, str(parent))
            _add_folder(tar, order.workdir.strip("/"))
            for source, name in _entries(order.folder, order.workdir.strip("/")):
                _add(tar, source, name)
        diff_id = _digest(content)
        with scratch.open("wb") as out, gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as packed:
            content.seek(0)
            while chunk := content.read(_CHUNK_BYTES):
                packed.write(chunk)
    return diff_id


def _entries(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Everything below a folder with its name in the image, parents first."""
    for source in sorted(folder.iterdir()):
        inside = f"{name}/{source.name}".strip("/")
        if source.is_symlink() or not (source.is_dir() or source.is_file()):
            raise InvalidInputError(f"{source} is a link or a special file; a world holds files and folders")
        yield source, inside
        if source.is_dir():
            yield from _entries(source, inside)


def _add(tar: tarfile.TarFile, source: Path, name: str) -> None:
    if source.is_dir():
        _add_folder(tar, name)
        return
    info = tarfile.TarInfo(name)
    info.size, info.mode = source.stat().st_size, 0o755 if os.access(source, os.X_OK) else 0o644
    with source.open("rb") as content:
        tar.addfile(info, content)


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    if name in {"", "."}:
        return
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(info)


@dataclass(frozen=True, slots=True)
class _Archive:
    """The outer tar: blobs by digest, and an index."""

    tar: tarfile.TarFile

    def text(self, name: str, content: object) -> None:
        """Store a record under a name of its own."""
        self._add(name, _json(content))

    def blob(self, media_type: str, content: IO[bytes]) -> Record:
        """Store a blob; returns how others refer to it."""
        digest = _digest(content)
        descriptor = {"mediaType": media_type, "digest": digest, "size": content.seek(0, os.SEEK_END)}
        name = blob_name(descriptor)
        if name not in self.tar.getnames():
            self._add(name, content)
        return descriptor

    def _add(self, name: str, content: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size = content.seek(0, os.SEEK_END)
        content.seek(0)
        self.tar.addfile(info, content)


def _json(content: object) -> BytesIO:
    return BytesIO(json.dumps(content, sort_keys=True).encode())


def _digest(content: IO[bytes]) -> str:
    content.seek(0)
    found = hashlib.sha256()
    while chunk := content.read(_CHUNK_BYTES):
        found.update(chunk)
    return f"sha256:{found.hexdigest()}"
