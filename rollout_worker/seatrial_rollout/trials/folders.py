"""The folders that trials live in: owned by a living host, or swept away by the next one."""

import array
import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seatrial_sandbox import files

_PREFIX = "seatrial-trials-"
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # the kernel's FS_IOC_GETFLAGS and FS_IOC_SETFLAGS
_TOP_DIRECTORY = 0x00020000  # its FS_TOPDIR_FL


@dataclass(slots=True)
class OwnedFolder:
    """A folder with a lock that its owner's death opens, whatever way the owner dies."""

    path: Path
    _lock: int

    @classmethod
    def create(cls, scratch_dir: Path | None) -> Self:
        """Make a folder, and remove those of owners that were killed.

        Args:
            scratch_dir: Where; the system's temporary folder if none.
        """
        scratch_dir = scratch_dir or Path(tempfile.gettempdir())
        for abandoned in _abandoned(scratch_dir):
            try_to_remove(abandoned)
        hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=scratch_dir))
        lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        spread(lock)
        # Renamed under the lock, so that nobody ever sees it without one.
        return cls(hidden.rename(scratch_dir / hidden.name.removeprefix(".")), lock)

    def release(self) -> None:
        """Open the lock; doing so twice does no harm."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def try_to_remove(folder: Path) -> bool:
    """Remove a folder that dying processes may still write to.

    Returns:
        Whether it is gone; if not, try again a little later.
    """
    with contextlib.suppress(OSError):
        files.remove(folder)
    return not folder.exists()


def _abandoned(scratch_dir: Path) -> Iterator[Path]:
    for folder in scratch_dir.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
            finally:
                os.close(lock)


def spread(folder: int) -> None:
    """Have ext4 put each folder of a folder elsewhere on the disk; other file systems pass over it.

    To make a file, ext4 steps over every inode of the folder's part of the disk that was freed in the last seconds. All
    below one folder share a part, and trials make and remove dozens of files each: `bench.trial_folders`.
    """
    flags = array.array("l", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(folder, _GET_FLAGS, flags)
        flags[0] |= _TOP_DIRECTORY
        fcntl.ioctl(folder, _SET_FLAGS, flags)
