"""An image, or several for different machines, from an archive into a repository."""

import hashlib
from dataclasses import dataclass, field

from seatrial.oci_archive import INDEX, INDEXES, OciArchive, Record, blob_name
from seatrial.push.upload import Uploader
from seatrial_api.errors import InvalidInputError


@dataclass
class Pushed:
    """What a push came to."""

    digest: str = ""
    """What the tag stands for."""
    sent: list[str] = field(default_factory=list)
    """Digests of what was sent, manifests included."""
    there: list[str] = field(default_factory=list)
    """Digests of what was there."""


def num_bytes(archive: OciArchive) -> int:
    """How much a push of everything sends, without manifests."""
    return sum(blob["size"] for one in archive.index()["manifests"] for blob in _blobs(archive, one))


def archive_tag(archive: OciArchive) -> str | None:
    """The tag that the archive itself names, if there is one image in it that has one."""
    names = [
        one.get("annotations", {}).get("org.opencontainers.image.ref.name") for one in archive.index()["manifests"]
    ]
    return names[0].rpartition(":")[2] if len(names) == 1 and names[0] else None


async def push_archive(archive: OciArchive, uploader: Uploader, tag: str) -> Pushed:
    """Push what an archive holds: one image under its own digest, several as an index.

    Raises:
        InvalidInputError: if the archive holds no image.
        SeatrialError: as `Uploader`.
    """
    pushed = Pushed()
    images: list[Record] = archive.index()["manifests"]
    if not images:
        raise InvalidInputError(f"{archive.path} holds no image")
    if len(images) == 1:
        await _push(archive, uploader, images[0], tag, pushed)
        pushed.digest = str(images[0]["digest"])
        return pushed
    for image in images:
        await _push(archive, uploader, image, str(image["digest"]), pushed)
    content = archive.content("index.json")
    pushed.digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    _note(pushed, pushed.digest, was_sent=await uploader.manifest(tag, INDEX, content, pushed.digest))
    return pushed


async def _push(archive: OciArchive, uploader: Uploader, descriptor: Record, name: str, pushed: Pushed) -> None:
    """Push what a manifest or an index refers to, then itself: a registry refuses one whose parts it lacks."""
    record = archive.record(descriptor)
    if descriptor["mediaType"] in INDEXES:
        for inner in record["manifests"]:
            await _push(archive, uploader, inner, str(inner["digest"]), pushed)
    else:
        for blob in (record["config"], *record["layers"]):
            digest = str(blob["digest"])
            _note(pushed, digest, was_sent=await uploader.blob(digest, archive.blob(blob)))
    digest = str(descriptor["digest"])
    content = archive.content(blob_name(descriptor))
    was_sent = await uploader.manifest(name, str(descriptor["mediaType"]), content, digest)
    _note(pushed, digest, was_sent=was_sent)


def _blobs(archive: OciArchive, descriptor: Record) -> list[Record]:
    record = archive.record(descriptor)
    if descriptor["mediaType"] in INDEXES:
        return [blob for inner in record["manifests"] for blob in _blobs(archive, inner)]
    return [record["config"], *record["layers"]]


def _note(pushed: Pushed, digest: str, *, was_sent: bool) -> None:
    (pushed.sent if was_sent else pushed.there).append(digest)
