"""Has documents read by a process of their own, which is replaced whenever one of them breaks it."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from seatrial_sandbox.documents.extract import Extract, media_type
from seatrial_sandbox.documents.part import Part

DOCUMENT_SECONDS = 20.0
"""Time that one document may take."""
_START_SECONDS = 30.0


class Extractor:
    """Reads documents one after the other; blocking, for a thread of its own."""

    def __init__(self, seconds: float = DOCUMENT_SECONDS, env: Mapping[str, str] | None = None) -> None:
        """Start nothing yet.

        Args:
            seconds: Time that one document may take.
            env: Environment of the process.
        """
        self._env = dict(env or {})
        self._seconds = seconds
        self._worker: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()

    def extract(self, name: str, document: int, max_bytes: int) -> Extract:
        """What a document says; one that cannot be read has an error.

        Args:
            name: Its file name.
            document: Its descriptor.
            max_bytes: Most bytes of text.
        """
        is_fresh = self._connection is None
        connection = self._connection or self._start()
        connection.settimeout(self._seconds + (_START_SECONDS if is_fresh else 0.0))
        request = json.dumps({"name": name, "max_bytes": max_bytes}).encode()
        try:
            socket.send_fds(connection, [request], [document])
            with connection.makefile("rb") as answers:
                answer = answers.readline()
            facts: dict[str, Any] = json.loads(answer)
        except TimeoutError:
            return self._broken(name, f"not read within {self._seconds:g} s")
        except (OSError, ValueError):
            return self._broken(name, "reading it ended the reader: it asks for too much memory, or is damaged")
        parts = tuple(Part(part["title"], part["text"], tuple(map(tuple, part["rows"]))) for part in facts["parts"])
        return Extract(facts["media_type"], parts, facts["truncated"], facts["error"])

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None

    def _broken(self, name: str, error: str) -> Extract:
        self.close()
        return Extract(media_type(name), error=error)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._worker = subprocess.Popen(
                [sys.executable, "-I", "-m", "seatrial_sandbox.documents.worker"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8", **self._env},
            )
        self._connection = ours
        return ours
