"""One-layer OCI archives, as `ctr images import` and every other tool for containers reads them."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_PLATFORM = {"os": "linux", "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")}
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Image:
    """Name of an image, and how its containers start."""

    name: str
    """With a tag: `localhost/ray:test`."""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    """Working directory."""
    user: str = ""
    """`UID:GID`; root if empty."""


class Layer:
    """Files for an image. All belong to root, folders come to be as needed, and who takes a path first keeps it."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._taken: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """A folder."""
        if (info := self._claim(path)) is not None:
            info.type, info.mode = tarfile.DIRTYPE, mode
            self._tar.addfile(info)

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        if (info := self._claim(path)) is not None:
            info.type, info.linkname = tarfile.SYMTYPE, target
            self._tar.addfile(info)

    def text(self, path: str, content: str, mode: int = 0o644) -> None:
        """A file that holds a text."""
        if (info := self._claim(path)) is not None:
            data = content.encode()
            info.size, info.mode = len(data), mode
            self._tar.addfile(info, io.BytesIO(data))

    def file(self, source: Path, path: str) -> None:
        """A file of this machine; of a link, what it leads to."""
        if (info := self._claim(path)) is not None:
            status = source.stat()
            # Interpreters compare times with those in their caches, hence they stay.
            info.size, info.mode, info.mtime = status.st_size, status.st_mode & 0o777, int(status.st_mtime)
            with source.open("rb") as content:
                self._tar.addfile(info, content)

    def tree(self, source: Path, path: str, *, leave_out: Iterable[str] = ()) -> None:
        """A folder of this machine with all that is in it, links as links, but for what bears one of some names."""
        names = frozenset(leave_out)
        self.folder(path)
        for entry in sorted(source.iterdir()):
            inside = f"{path}/{entry.name}"
            if entry.name in names:
                continue
            if entry.is_symlink():
                self.link(inside, str(entry.readlink()))
            elif entry.is_dir():
                self.tree(entry, inside, leave_out=names)
            elif entry.is_file():
                self.file(entry, inside)

    def _claim(self, path: str) -> tarfile.TarInfo | None:
        name = path.strip("/")
        if not name or name in self._taken:
            return None
        self.folder(name.rpartition("/")[0])
        self._taken.add(name)
        return tarfile.TarInfo(name)


def write_archive(path: Path, image: Image, fill: Callable[[Layer], None]) -> None:
    """Write an image whose files `fill` puts in; the archive appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as content, tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as tar:
            layer = Layer(tar)
            layer.folder("tmp", 0o1777)
            fill(layer)
        unfinished = Path(scratch) / path.name
        with tarfile.open(unfinished, "w") as archive:
            _write_parts(_Archive(archive), image, content)
        unfinished.rename(path)


@dataclass(frozen=True, slots=True)
class _Archive:
    """The outer tar: blobs by digest, and an index."""

    tar: tarfile.TarFile

    def text(self, name: str, content: object) -> None:
        self._add(name, io.BytesIO(json.dumps(content).encode()))

    def blob(self, media_type: str, content: IO[bytes]) -> dict[str, Any]:
        """Store a blob; returns how others refer to it."""
        digest = _digest(content)
        size = self._add(f"blobs/sha256/{digest}", content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}

    def _add(self, name: str, content: IO[bytes]) -> int:
        info = tarfile.TarInfo(name)
        info.size = content.seek(0, io.SEEK_END)
        content.seek(0)
        self.tar.addfile(info, content)
        return info.size


def _write_parts(archive: _Archive, image: Image, content: IO[bytes]) -> None:
    layer = archive.blob(_LAYER, content)
    config = {
        **_PLATFORM,
        "config": {
            "Cmd": image.command,
            "Env": [f"{key}={value}" for key, value in ({"PATH": _PATH} | dict(image.env)).items()],
            "WorkingDir": image.folder,
            "User": image.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": archive.blob(_CONFIG, _json(config)),
        "layers": [layer],
    }
    entry = archive.blob(_MANIFEST, _json(manifest)) | {
        "platform": _PLATFORM,
        "annotations": {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        },
    }
    archive.text("index.json", {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]})
    archive.text("oci-layout", {"imageLayoutVersion": "1.0.0"})


def _json(value: object) -> IO[bytes]:
    return io.BytesIO(json.dumps(value).encode())


def _digest(content: IO[bytes]) -> str:
    content.seek(0)
    digest = hashlib.sha256()
    while chunk := content.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
