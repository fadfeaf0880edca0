"""How what is stored becomes durable.

Run storage reads and writes a folder. `Files` says when what is written there is safe: on a disk it is at once; a
mirrored folder (`storage.mirror`) is a working copy of what lies in an object store. Three promises are told apart:

    write, keep     durable when the call returns: groups, batch manifests, reports
    keep_later      durable by the next `settle`, in the order of the calls: checkpoints, what people look at
    read            what is durable now, whoever wrote it: who owns the run
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from seatrial_trainer.storage.atomic import write_atomic


class Files:
    """Files on a disk that outlives the driver: a folder, a PersistentVolumeClaim."""

    def write(self, path: Path, data: bytes) -> None:
        """Write a file, whole or not at all; durable when this returns.

        Raises:
            OSError: naming the file, if the disk is full or the folder cannot be written.
            StoreUnavailableError: if there is an object store and it does not answer.
        """
        write_atomic(path, data)
        self.keep(path)

    def write_new(self, path: Path, data: bytes) -> bool:
        """Write a file that nobody else has written; whether that holds, so that of several who try only one succeeds.

        Raises:
            OSError, StoreUnavailableError: as above.
        """
        return write_atomic(path, data, is_new=True)

    def keep(self, path: Path) -> None:
        """Make a file as it is now durable before this returns."""

    def keep_later(self, *paths: Path, check: Callable[[], None] | None = None) -> None:
        """Make files as they are by then durable, one after the other, behind the caller's back.

        Args:
            paths: The files.
            check: Called right before the last of them; what it raises keeps that one back, and all that follows.
        """

    def check_before_publishing(self, check: Callable[[], None]) -> None:
        """Make a check that a folder's appearing depends on, unless it is made when the folder is kept later."""
        check()

    def settle(self) -> None:
        """Wait until all that was to come later is durable.

        Raises:
            StoreUnavailableError: if it cannot be; nothing after the failure was stored.
        """

    def read(self, path: Path) -> bytes:
        """What a file holds where it is durable."""
        return path.read_bytes()

    def fetch(self, path: Path) -> bool:
        """Bring a file back that is missing or damaged here; whether there was one to bring."""
        del path  # a disk has no second copy
        return False

    def remove(self, path: Path) -> None:
        """Remove a file or a folder; the durable copy goes later, in the order of the calls."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        """Give a folder another name, in place of what had it; the durable copy follows later."""
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)

    def restore(self) -> None:
        """Make the folder what is durable, for a driver that takes the run over."""

    def refresh(self) -> None:
        """Bring what is durable into the folder and leave all else, for someone who looks at the run."""

    def address(self, path: Path) -> str:
        """Where a file or folder is durable, for a person."""
        return str(path)


DISK = Files()
