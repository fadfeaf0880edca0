"""A bucket as moto keeps it, over HTTP; it can be out of order for a while, and lose nothing by it."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import boto3
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.store import ObjectStore

BUCKET = "runs"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
"""Environment of whatever talks to the bucket."""


@dataclass
class Bucket:
    """One bucket, and the server in front of it."""

    _server: BaseWSGIServer = field(init=False)
    _is_out: threading.Event = field(default_factory=threading.Event)
    _refused: threading.Event = field(default_factory=threading.Event)
    _held: str | None = None
    _released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @cached_property
    def client(self) -> Any:
        """boto3's own client, to look behind the store's back."""
        session = boto3.Session(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"])
        return session.client("s3", region_name=KEYS["AWS_DEFAULT_REGION"], endpoint_url=self.url)

    def empty(self) -> None:
        """Make the bucket anew."""
        get_backend("s3").reset()
        self.client.create_bucket(Bucket=BUCKET)

    def source(self, prefix: str = "team/run") -> S3Source:
        """A prefix as a spec names it."""
        return S3Source(uri=f"s3://{BUCKET}/{prefix}", endpoint_url=self.url)

    def store(self, prefix: str = "team/run", **changes: Any) -> ObjectStore:
        """A store over a prefix; changed."""
        return replace(ObjectStore.of(self.source(prefix)), **changes)

    def stored_keys(self, prefix: str = "team/run/") -> list[str]:
        """Keys below a prefix, without it."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"].removeprefix(prefix) for page in pages for entry in page.get("Contents", [])]

    def unfinished(self) -> list[str]:
        """Keys of uploads in parts that nobody finished."""
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    @contextmanager
    def out_of_order(self) -> Iterator[threading.Event]:
        """Answer 503 to everyone while the block runs; the event is set once somebody was told so."""
        self._refused.clear()
        self._is_out.set()
        try:
            yield self._refused
        finally:
            self._is_out.clear()

    @contextmanager
    def holding(self, part: str) -> Iterator[threading.Event]:
        """Let every request for a key with such a part wait until the event is set, or the block ends."""
        self._released.clear()
        self._held = part
        try:
            yield self._released
        finally:
            self._held = None
            self._released.set()

    def close(self) -> None:
        """Stop serving."""
        self.client.close()
        self._server.shutdown()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self._is_out.is_set():
            self._refused.set()
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if self._held is not None and self._held in environ["PATH_INFO"]:
            self._released.wait(60)
        answer: Iterable[bytes] = self._moto(environ, start_response)
        return answer
