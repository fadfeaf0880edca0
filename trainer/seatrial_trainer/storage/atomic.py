"""Writes that are either whole or absent, also after a power cut."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
"""What file systems without hard links answer."""


def write_atomic(path: Path, data: bytes, *, is_new: bool = False) -> bool:
    """Write a file so that a reader finds the old content or the new, never a part.

    Args:
        path: The file.
        data: Its content.
        is_new: Leave a file alone that is there already.

    Returns:
        Whether it was written.

    Raises:
        OSError: naming the file, if the disk is full or the folder cannot be written; the old content stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        is_ours = _claim(path, partial) if is_new else True
        if is_ours:
            partial.replace(path)
        partial.unlink(missing_ok=True)  # a second name of the same file is not replaced
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):  # a full disk is told without a file name: one could not tell which
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)
    return is_ours


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """Yield a folder to fill aside; when the block ends it moves into place in one step.

    One process writes a target at a time: what killed ones left half filled is removed.

    Raises:
        OSError: if it cannot be written; `target` is then absent or as it was.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    for left_over in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(left_over, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in (partial, *partial.rglob("*")):
            _sync(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    _sync(folder)


def _claim(path: Path, content: Path) -> bool:
    """Give a file a name that no file has, in one step where the file system knows links; whether none had it."""
    try:
        path.hardlink_to(content)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return not path.exists()
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
