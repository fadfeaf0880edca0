"""Buckets over HTTP: moto's, which can be out of order for a while, and one of a real server.

That server is Versity's gateway over a folder: a program that people keep their data with, which shares no code with
moto or boto3 and checks what is signed and what is sent.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, override

import boto3
import psutil
import pytest
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from hack.cluster.layout import BIN
from seatrial_api.clock import Deadline
from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.store import ObjectStore

BUCKET = "runs"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
"""Environment of whatever talks to the bucket."""


class AnyBucket:
    """One bucket on some server."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is served."""

    @abstractmethod
    def empty(self) -> None:
        """Make the bucket anew."""

    @cached_property
    def client(self) -> Any:
        """boto3's own client, to look behind the store's back."""
        session = boto3.Session(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"])
        return session.client("s3", region_name=KEYS["AWS_DEFAULT_REGION"], endpoint_url=self.url)

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


@dataclass
class Bucket(AnyBucket):
    """A bucket as moto keeps it, and the server in front of it."""

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
    @override
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @override
    def empty(self) -> None:
        get_backend("s3").reset()
        self.client.create_bucket(Bucket=BUCKET)

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


@dataclass
class RealBucket(AnyBucket):
    """A bucket of Versity's gateway, which keeps it in a folder."""

    PROGRAM: ClassVar = BIN / "versitygw"
    _folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="versitygw-")))

    def __post_init__(self) -> None:
        if not self.PROGRAM.exists():
            pytest.skip(f"needs {self.PROGRAM.name} (make test-tools)")
        keys = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
        for part in ("data", "metadata"):
            (self._folder / part).mkdir()
        folders = ["--sidecar", self._folder / "metadata", self._folder / "data"]
        arguments = [self.PROGRAM, "--quiet", "--port", "127.0.0.1:0", "posix", *folders]
        self._process = subprocess.Popen(
            arguments, env=os.environ | keys, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @cached_property
    @override
    def url(self) -> str:
        deadline, process = Deadline.after(60), psutil.Process(self._process.pid)
        while not (listening := process.net_connections("tcp4")):
            assert self._process.poll() is None, "versitygw ended before it listened"
            deadline.check("versitygw to listen")
            threading.Event().wait(0.02)
        return f"http://127.0.0.1:{listening[0].laddr.port}"

    @override
    def empty(self) -> None:
        for part in ("data", "metadata"):
            for path in (self._folder / part).iterdir():
                shutil.rmtree(path)
        self.client.create_bucket(Bucket=BUCKET)

    def close(self) -> None:
        """Stop serving."""
        self.client.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)
