"""Blobs and manifests into a repository: what is there already stays, what broke off goes on where it may."""

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO

from yarl import URL

from seatrial.push.session import TRIES, Answer, RegistrySession
from seatrial_api.errors import TransientError
from seatrial_operator.registry.client import MANIFEST_TYPES
from seatrial_operator.registry.errors import RegistryUnavailableError

_READ_BYTES = 1 << 20
_BYTES = {"Content-Type": "application/octet-stream"}
_FORGOTTEN = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND})
"""Answers about an upload that the registry does not know any more."""


@dataclass(frozen=True, slots=True)
class Uploader:
    """Stores content in one repository."""

    session: RegistrySession
    piece_bytes: int = 0
    """Size of the requests that a blob goes in, so that a broken one costs no more than itself; 0 sends it in one,
    which more registries take."""
    sent: Callable[[int], None] = lambda _: None
    """Told how many bytes went out."""

    async def blob(self, digest: str, content: IO[bytes]) -> bool:
        """Store a blob, unless it is there; whether it was sent.

        Raises:
            SeatrialError: as `RegistrySession.request`.
        """
        found = await self.session.request(
            "HEAD", self._url(f"blobs/{digest}"), {HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.TEMPORARY_REDIRECT}
        )
        if found.status != HTTPStatus.NOT_FOUND:
            return False
        size = content.seek(0, os.SEEK_END)
        if 0 < self.piece_bytes < size:
            upload = await self._pieces(content, size)
            await self.session.request("PUT", _finish(upload, digest), {HTTPStatus.CREATED})
        else:
            await self._whole(digest, content, size)
        return True

    async def manifest(self, name: str, media_type: str, content: bytes, digest: str) -> bool:
        """Store a manifest under a tag or its digest, unless it is there; whether it was sent.

        Raises:
            SeatrialError: as `RegistrySession.request`.
        """
        url = self._url(f"manifests/{name}")
        accept = {"Accept": ", ".join(MANIFEST_TYPES)}
        found = await self.session.request("HEAD", url, {HTTPStatus.OK, HTTPStatus.NOT_FOUND}, headers=accept)
        if found.status == HTTPStatus.OK and found.headers.get("Docker-Content-Digest") == digest:
            return False
        headers = {"Content-Type": media_type}
        await self.session.request("PUT", url, {HTTPStatus.CREATED}, headers=headers, body=lambda: content)
        return True

    async def _begin(self) -> URL:
        return _location(await self.session.request("POST", self._url("blobs/uploads/"), {HTTPStatus.ACCEPTED}))

    async def _whole(self, digest: str, content: IO[bytes], size: int) -> None:
        """Send a blob in one request; one that breaks off leaves an upload of unknown content, so another is begun."""
        headers = {**_BYTES, "Content-Length": str(size)}
        for number in range(TRIES):
            url = _finish(await self._begin(), digest)
            try:
                await self.session.request(
                    "PUT", url, {HTTPStatus.CREATED}, headers=headers, body=lambda: self._stream(content), tries=1
                )
            except TransientError:
                if number == TRIES - 1:
                    raise
                await self.session.clock.sleep(2**number)
            else:
                return

    async def _pieces(self, content: IO[bytes], size: int) -> URL:
        """Send a blob piece by piece; where its upload then lies.

        After a piece that broke off, the registry tells how far the upload has come. Some then know nothing of it any
        more, so that it begins anew.
        """
        upload, start, stumbles = await self._begin(), 0, 0
        while start < size:
            content.seek(start)
            answer = await self._piece(upload, content.read(self.piece_bytes), start)
            if answer is None:
                stumbles += 1
                if stumbles == TRIES:
                    raise RegistryUnavailableError(image=str(self.session.reference), detail="its uploads break off")
                await self.session.clock.sleep(2**stumbles)
                answer = await self.session.request("GET", upload, {HTTPStatus.NO_CONTENT, *_FORGOTTEN})
            is_known = answer.status not in _FORGOTTEN
            stored = _stored(answer) if is_known else 0
            self.sent(stored - start)
            upload, start = _location(answer) if is_known else await self._begin(), stored
        return upload

    async def _piece(self, upload: URL, piece: bytes, start: int) -> Answer | None:
        """Send one piece, once; none if it did not arrive, or the registry has another idea of where the upload is."""
        headers = {**_BYTES, "Content-Range": f"{start}-{start + len(piece) - 1}"}
        expected = {HTTPStatus.ACCEPTED, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, *_FORGOTTEN}
        try:
            answer = await self.session.request("PATCH", upload, expected, headers=headers, body=lambda: piece, tries=1)
        except TransientError:
            return None
        return answer if answer.status == HTTPStatus.ACCEPTED else None

    async def _stream(self, content: IO[bytes]) -> AsyncIterator[bytes]:
        content.seek(0)
        while piece := content.read(_READ_BYTES):
            yield piece
            self.sent(len(piece))

    def _url(self, path: str) -> URL:
        return self.session.base.join(URL(path))


def _location(answer: Answer) -> URL:
    """Where an upload goes on; registries change it with every answer."""
    told = answer.headers.get("Location", "")
    return answer.url.join(URL(told, encoded=True)) if told else answer.url


def _stored(answer: Answer) -> int:
    """How many bytes of an upload the registry holds: `Range: 0-41` says 42."""
    last = answer.headers.get("Range", "").rpartition("-")[2]
    return int(last) + 1 if last.isdecimal() else 0


def _finish(upload: URL, digest: str) -> URL:
    """The address that ends an upload; what it holds already stays letter for letter, as it may be signed."""
    text = str(upload)
    return URL(f"{text}{'&' if upload.raw_query_string else '?'}digest={digest}", encoded=True)
