"""What is on its way in or out: files without a name, which a broken stream goes on with."""

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxDataError, SandboxLimitError, SandboxStateError

MAX_TRANSFERS = 1024
"""Most uploads that are remembered."""
MAX_OFFERS = 32
"""Most archives that wait to be fetched; the oldest is forgotten for the next."""
MAX_SPOOL_BYTES = 16 * 1024**3
"""Most bytes of all transfers."""
IDLE_SECONDS = 900.0
"""Time after which a transfer that nobody touches is forgotten."""


@dataclass(slots=True, eq=False)
class Upload:
    """Bytes that arrive, in order."""

    size: int
    sha256: bytes
    file: BinaryIO
    touched: float
    received: int = 0
    is_done: bool = False
    """Whether it has reached its goal; asked for again, nothing is to do."""
    stream: int = 0
    """Number of the stream that writes now; an older one, whose end nobody has noticed yet, may write no more."""
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def write(self, data: bytes, stream: int) -> None:
        """Take the next bytes.

        Raises:
            SandboxStateError: If another stream goes on with the upload.
            SandboxLimitError: If they are more than was said.
            SandboxDiskFullError: If the disk is full.
        """
        if stream != self.stream:
            raise SandboxStateError("another stream goes on with this upload")
        if self.received + len(data) > self.size:
            raise SandboxLimitError(f"more than the {self.size} bytes that were announced")
        with files.sandbox_errors("receiving"):
            self.file.write(data)
        self._digest.update(data)
        self.received += len(data)

    def check_complete(self) -> None:
        """Let pass only what has arrived to its end.

        Raises:
            SandboxStateError: If the end is missing; it can be gone on with.
        """
        if self.received < self.size:
            raise SandboxStateError(f"{self.received} of {self.size} bytes have arrived")

    def check_content(self) -> None:
        """Compare all that arrived with what was announced.

        Raises:
            SandboxDataError: If the checksum differs.
        """
        if self._digest.digest() != self.sha256:
            raise SandboxDataError("what arrived has another checksum than was announced")
        self.file.flush()


@dataclass(slots=True, eq=False)
class Outgoing:
    """Bytes to be fetched: an archive."""

    file: BinaryIO
    size: int
    touched: float


@dataclass(slots=True)
class Transfers:
    """Every transfer of a sandbox."""

    spool: Path
    clock: Clock = SYSTEM_CLOCK
    uploads: dict[str, Upload] = field(default_factory=dict)
    outgoing: dict[str, Outgoing] = field(default_factory=dict)

    def open_upload(self, name: str, size: int, sha256: bytes, offset: int) -> tuple[Upload, int]:
        """Begin an upload, or go on with one.

        Returns:
            The upload, and the number of the stream that may write now.

        Raises:
            SandboxStateError: If it was announced otherwise, or the offset is not what has arrived.
            SandboxLimitError: If it is too much.
            SandboxDiskFullError: If the disk is full.
        """
        self.forget_idle()
        if name not in self.uploads:
            self._make_room(size)
            self.uploads[name] = Upload(size, sha256, self.new_file(), self.clock.now())
        upload = self.uploads[name]
        if (upload.size, upload.sha256) != (size, sha256):
            raise SandboxStateError("an upload of this name was announced with another size or checksum")
        if offset != upload.received:
            raise SandboxStateError(f"the upload goes on at {upload.received}, not at {offset}")
        upload.touched = self.clock.now()
        upload.stream += 1
        return upload, upload.stream

    def arrived(self, name: str) -> Upload:
        """An upload that is complete.

        Raises:
            SandboxStateError: If there is none of the name, or it is not complete.
        """
        if name not in self.uploads or not self.uploads[name].is_done:
            raise SandboxStateError(f"there is no complete upload {name[:100]!r}")
        return self.uploads[name]

    def finish_upload(self, name: str, *, keep: bool) -> None:
        """Remember that an upload has reached its goal; its bytes stay only if asked."""
        self.uploads[name].is_done = True
        if not keep:
            self.uploads[name].file.close()

    def drop_upload(self, name: str) -> None:
        """Forget an upload."""
        if name in self.uploads:
            self.uploads.pop(name).file.close()

    def offer(self, file: BinaryIO) -> str:
        """Let a file be fetched; returns its name."""
        self.forget_idle()
        size = os.fstat(file.fileno()).st_size
        self._make_room(size)
        name = secrets.token_urlsafe(16)
        self.outgoing[name] = Outgoing(file, size, self.clock.now())
        return name

    def offered(self, name: str) -> Outgoing:
        """A file that may be fetched.

        Raises:
            SandboxStateError: If there is none of the name.
        """
        if name not in self.outgoing:
            raise SandboxStateError(f"there is no archive {name[:100]!r}, or it was forgotten; take the snapshot again")
        self.outgoing[name].touched = self.clock.now()
        return self.outgoing[name]

    def new_file(self) -> BinaryIO:
        """A file without a name.

        Raises:
            SandboxDiskFullError: If the disk is full.
        """
        with files.sandbox_errors("making a file"):
            return tempfile.TemporaryFile(dir=self.spool)

    def forget_idle(self) -> None:
        """Forget what nobody has touched for long."""
        limit = self.clock.now() - IDLE_SECONDS
        for name in [name for name, upload in self.uploads.items() if upload.touched < limit]:
            self.drop_upload(name)
        for name in [name for name, archive in self.outgoing.items() if archive.touched < limit]:
            self.outgoing.pop(name).file.close()

    def close(self) -> None:
        """Forget everything."""
        waiting: list[Upload | Outgoing] = [*self.uploads.values(), *self.outgoing.values()]
        for transfer in waiting:
            transfer.file.close()
        self.uploads.clear()
        self.outgoing.clear()

    def _make_room(self, size: int) -> None:
        while len(self.outgoing) >= MAX_OFFERS:
            self.outgoing.pop(next(iter(self.outgoing))).file.close()
        waiting = [upload.size for upload in self.uploads.values() if not upload.is_done]
        waiting += [archive.size for archive in self.outgoing.values()]
        if len(self.uploads) >= MAX_TRANSFERS or size + sum(waiting) > MAX_SPOOL_BYTES:
            raise SandboxLimitError(f"more than {MAX_TRANSFERS} transfers, or {MAX_SPOOL_BYTES} bytes of them")
