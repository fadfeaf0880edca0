"""Objects under one prefix of a bucket, over boto3.

Every call is safe to repeat, and is: a request that stands still is given up and made again, by botocore within
seconds and by us, with back-off, until patience runs out. Calls block; an event loop makes them in a thread.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import boto3
import structlog
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from seatrial_api.clock import Deadline
from seatrial_api.errors import InvalidInputError, TransientError
from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.errors import BOTO_ERRORS, ObjectTakenError, StoreUnavailableError, translated

_log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 180.0
STALL_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 10.0
_QUICK_ATTEMPTS = 4
"""botocore's own tries at one request: a lost part is sent again without the rest of its file."""
_PART_BYTES = 16 << 20
_PARALLEL_PARTS = 8
_DELETED_AT_ONCE = 1000
_WRITTEN_AT = "written-at-ns"
"""Metadata of an object: when its content was written, as a file system tells it; S3 itself knows only seconds."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    key: str
    """Relative to the store's prefix."""
    size: int
    """Bytes."""
    etag: str
    """Changes with the content; the MD5 of it in the simplest case."""

    def below(self, folder: Path) -> Path:
        """Its path in a folder that has the keys for names.

        Raises:
            InvalidInputError: if the key leads out of it.
        """
        path = folder / self.key
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InvalidInputError(f"the object {self.key} would lie outside of {folder}; rename it")
        return path


@dataclass(frozen=True)
class ObjectStore:
    """The objects under a prefix; every key is relative to it."""

    bucket: str
    prefix: str
    """Empty, or with a `/` at its end."""
    endpoint_url: str | None = None
    """Of an S3-compatible store; AWS, or what the environment says, if none."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long an outage is ridden out."""
    stall_seconds: float = STALL_SECONDS
    """A request on which nothing moves for so long is given up, and made again."""
    _outage: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set once patience ran out: nobody is patient a second time before a call succeeds."""

    @classmethod
    def of(cls, source: S3Source) -> Self:
        """The store that a spec names; credentials come from the environment, as every AWS tool takes them."""
        bucket, _, prefix = source.uri.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        return cls(bucket, f"{prefix}/" if prefix else "", source.endpoint_url)

    def uri(self, key: str = "") -> str:
        """An object's address, for a person."""
        return f"s3://{self.bucket}/{self.prefix}{key}".rstrip("/")

    def put(self, key: str, path: Path) -> None:
        """Store a file's content; big files go in parts, several at once. It is durable when this returns.

        Raises:
            StoreUnavailableError: if the store does not answer for longer than we are patient.
            InvalidInputError: if the store refuses: no bucket, no rights.
            OSError: if the file cannot be read.
        """
        with path.open("rb") as file:  # the name may be given to another file meanwhile
            about = os.fstat(file.fileno())
            content = file.read() if about.st_size < _PART_BYTES else None
        target = {"Bucket": self.bucket, "Key": self.prefix + key}
        metadata = {_WRITTEN_AT: str(about.st_mtime_ns)}
        if content is None:
            put = partial(
                self._client.upload_file, str(path), **target, ExtraArgs={"Metadata": metadata}, Config=_IN_PARTS
            )
        else:
            put = partial(self._client.put_object, **target, Body=content, Metadata=metadata)
        self._patiently(key, put)

    def claim(self, key: str) -> bool:
        """Make an empty object; whether there was none before, so that of several who try only one succeeds."""
        try:
            self._put_absent(key, b"")
        except ObjectTakenError:
            return False
        return True

    def put_new(self, key: str, content: bytes) -> bool:
        """Store an object that nobody else has stored; one that is there and the same was ours, whose answer was lost.

        Raises:
            StoreUnavailableError, InvalidInputError: as above.
        """
        try:
            self._put_absent(key, content)
        except ObjectTakenError:
            return self.get(key) == content
        return True

    def get(self, key: str) -> bytes:
        """An object's content.

        Raises:
            ObjectMissingError: if there is none.
            StoreUnavailableError: as above.
            CorruptionError: if it is not what its checksum says.
        """
        return self._get(key)[0]

    def fetch(self, stored: StoredObject, path: Path) -> int | None:
        """Write an object's content into a file, whole or not at all; big ones come in parts, several at once.

        Returns:
            When the content was first written, as `st_mtime_ns`, if the object tells it and is small.

        Raises:
            ObjectMissingError: if there is none by now.
            StoreUnavailableError: as above.
            OSError: if the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            written_at = self._fetch(stored, arriving)
            arriving.replace(path)
        finally:
            arriving.unlink(missing_ok=True)
        return written_at

    def objects(self, under: str = "") -> Iterator[StoredObject]:
        """Every object whose key starts so, in order of the keys."""
        for page in self._pages("list_objects_v2", under):
            for entry in page.get("Contents", []):
                yield StoredObject(entry["Key"].removeprefix(self.prefix), entry["Size"], entry["ETag"].strip('"'))

    def folders(self, under: str = "") -> list[str]:
        """Names of what looks like folders right below a key, which is empty or ends with `/`."""
        pages = self._pages("list_objects_v2", under, Delimiter="/")
        start = len(self.prefix) + len(under)
        return [entry["Prefix"][start:].rstrip("/") for page in pages for entry in page.get("CommonPrefixes", [])]

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there do no harm."""
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            objects = [{"Key": self.prefix + key} for key in keys[start : start + _DELETED_AT_ONCE]]
            answer = self._patiently(
                keys[start],
                partial(self._client.delete_objects, Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}),
            )
            if failed := answer.get("Errors"):
                raise InvalidInputError(f"{self.uri(keys[start])}: cannot be deleted: {failed[0].get('Message')}")

    def move(self, key: str, target: str) -> None:
        """Give an object another key, without its content passing through here."""
        source = {"Bucket": self.bucket, "Key": self.prefix + key}
        self._patiently(key, lambda: self._client.copy(source, self.bucket, self.prefix + target, Config=_IN_PARTS))
        self.delete([key])

    def abort_unfinished(self) -> int:
        """Drop the parts of uploads that a killed process began; returns how many there were."""
        unfinished = [
            (upload["Key"], upload["UploadId"])
            for page in self._pages("list_multipart_uploads", "")
            for upload in page.get("Uploads", [])
        ]
        for key, upload_id in unfinished:
            self._patiently(
                key.removeprefix(self.prefix),
                partial(self._client.abort_multipart_upload, Bucket=self.bucket, Key=key, UploadId=upload_id),
            )
        return len(unfinished)

    @cached_property
    def _client(self) -> Any:
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=self.stall_seconds,
            retries={"mode": "standard", "total_max_attempts": _QUICK_ATTEMPTS},
            max_pool_connections=2 * _PARALLEL_PARTS,
        )
        return boto3.Session().client("s3", endpoint_url=self.endpoint_url, config=config)

    def _put_absent(self, key: str, content: bytes) -> None:
        target = {"Bucket": self.bucket, "Key": self.prefix + key}
        self._patiently(key, lambda: self._client.put_object(**target, Body=content, IfNoneMatch="*"))

    def _fetch(self, stored: StoredObject, path: Path) -> int | None:
        if stored.size > _PART_BYTES:
            key = self.prefix + stored.key
            self._patiently(
                stored.key, lambda: self._client.download_file(self.bucket, key, str(path), Config=_IN_PARTS)
            )
            return None
        content, metadata = self._get(stored.key)
        path.write_bytes(content)
        written_at = metadata.get(_WRITTEN_AT, "")
        return int(written_at) if written_at.isdigit() else None

    def _get(self, key: str) -> tuple[bytes, dict[str, str]]:
        def read() -> tuple[bytes, dict[str, str]]:
            answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
            with answer["Body"] as body:
                return body.read(), answer["Metadata"]

        return self._patiently(key, read)

    def _pages(self, operation: str, under: str, **options: Any) -> list[dict[str, Any]]:
        """All pages at once: a paginator that failed half-way would look like one at its end."""
        pages = self._client.get_paginator(operation)
        return self._patiently(
            under, lambda: list(pages.paginate(Bucket=self.bucket, Prefix=self.prefix + under, **options))
        )

    def _patiently[T](self, key: str, call: Callable[[], T]) -> T:
        """What `call` returns, asked again with growing delays while the error is one that passes."""
        deadline = Deadline.after(0.0 if self._outage.is_set() else self.patience_seconds)
        delay = _FIRST_DELAY_SECONDS
        while True:
            try:
                result = call()
            except BOTO_ERRORS as raised:
                error = translated(raised, self.uri(key))
            else:
                self._outage.clear()
                return result
            if not isinstance(error, TransientError):
                raise error
            if deadline.remaining <= 0:
                self._outage.set()
                raise StoreUnavailableError(
                    f"the object store was not to be had for {self.patience_seconds:.0f} s: {error}"
                )
            _log.warning("the object store is asked again", error=str(error), seconds_left=round(deadline.remaining))
            threading.Event().wait(min(delay, deadline.remaining))
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)


_IN_PARTS = TransferConfig(
    multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=_PARALLEL_PARTS
)
