"""Copying between the host and folders in which an agent has worked: no link is ever followed."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from seatrial_sandbox.errors import SandboxDiskFullError, SandboxPathError

MAX_DEPTH = 64
"""Deepest nesting that is copied out."""
MAX_COPY_BYTES = 4 * 1024**3
"""Most bytes that one copy takes out."""

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO must not hold us
_MAKE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_CHUNK_BYTES = 1 << 30

type _Edit = Callable[[bytes], bytes] | None


def copy_in(source: Path, root: Path, parts: Sequence[str], owner: int | None, edit: _Edit = None) -> None:
    """Copy a host file, or a folder's content, to a path below a sandbox's folder.

    Args:
        source: What to copy; a copy shares disk blocks where the file system can, never the file itself.
        root: Folder of the sandbox.
        parts: The path below it; folders are made, files replaced.
        owner: User that the copy belongs to; none leaves it to us.
        edit: Applied to the content of every file.

    Raises:
        SandboxPathError: If the path leads through a link.
        SandboxDiskFullError: If the disk is full.
    """
    with sandbox_errors(f"copying {source.name} into the sandbox"):
        if source.is_dir():
            with open_folder(root, parts, make=True, owner=owner) as folder:
                _copy_tree_in(source, folder, owner, edit)
        else:
            with open_folder(root, parts[:-1], make=True, owner=owner) as folder:
                _copy_file_in(source, folder, parts[-1], owner, edit)


def place(source: int, root: Path, parts: Sequence[str], mode: int) -> None:
    """Put a file below a sandbox's folder, at once and whole: whoever looks sees the former one or all of this one.

    Args:
        source: Descriptor of its content.
        root: Folder of the sandbox.
        parts: The path below it; folders are made, a file or link is replaced.
        mode: Permission bits.

    Raises:
        SandboxPathError: If the path leads through a link, or is a folder.
        SandboxDiskFullError: If the disk is full.
    """
    with sandbox_errors("writing into the sandbox"), open_folder(root, parts[:-1], make=True) as folder:
        place_in(source, folder, parts[-1], mode)


def place_in(source: int, folder: int, name: str, mode: int) -> None:
    """As `place`, in an open folder.

    Raises:
        OSError: As the file system does.
    """
    temporary = f".{secrets.token_hex(8)}.new"
    writing = os.open(temporary, _MAKE_FILE, 0o600, dir_fd=folder)
    try:
        os.lseek(source, 0, os.SEEK_SET)
        copy_bytes(source, writing)
        os.fchmod(writing, mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _unlink(temporary, folder)
        raise
    finally:
        os.close(writing)


def place_link(target: str, root: Path, parts: Sequence[str]) -> None:
    """Put a link below a sandbox's folder in place of what is there.

    Raises:
        SandboxPathError: If the path leads through a link, or is a folder.
    """
    with sandbox_errors("making a link"), open_folder(root, parts[:-1], make=True) as folder:
        _unlink(parts[-1], folder)
        os.symlink(target, parts[-1], dir_fd=folder)


def discard(root: Path, parts: Sequence[str]) -> None:
    """Remove what lies at a path below a sandbox's folder, with all that it holds; nothing there is fine.

    Raises:
        SandboxPathError: If the path leads through a link.
    """
    with sandbox_errors("removing"), suppress(FileNotFoundError), open_folder(root, parts[:-1]) as folder:
        _discard(parts[-1], folder)


def clear(root: Path, parts: Sequence[str]) -> list[str]:
    """Remove all that a folder holds.

    Returns:
        The names that were in it.

    Raises:
        SandboxPathError: If the path leads through a link.
    """
    with sandbox_errors("clearing"), open_folder(root, parts) as folder:
        names = sorted(os.listdir(folder))  # noqa: PTH208  by descriptor
        for name in names:
            _discard(name, folder)
        return names


def _discard(name: str, folder: int) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    try:
        shutil.rmtree(name, dir_fd=folder)
    except (OSError, RecursionError):
        _remove_stubborn(f"./{name}", cwd=f"/proc/self/fd/{folder}")


def set_mode(root: Path, parts: Sequence[str], mode: int) -> None:
    """Set a folder's permission bits.

    Raises:
        SandboxPathError: If the path leads through a link.
    """
    with sandbox_errors("setting permissions"), open_folder(root, parts) as folder:
        os.fchmod(folder, mode)


def open_file(name: str, folder: int) -> int:
    """Open a regular file for reading; a link is refused, and a pipe never waited for.

    Raises:
        OSError: `ELOOP` for a link, `EINVAL` for what is no regular file.
    """
    reading = os.open(name, _OPEN_FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(reading).st_mode):
        os.close(reading)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return reading


@contextmanager
def opened(name: str, folder: int) -> Iterator[int]:
    """As `open_file`, until the end of the block."""
    reading = open_file(name, folder)
    try:
        yield reading
    finally:
        os.close(reading)


@contextmanager
def open_step(name: str, folder: int) -> Iterator[int]:
    """Open a folder in an open folder.

    Raises:
        OSError: `ELOOP` or `ENOTDIR` for a link.
    """
    step = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    try:
        yield step
    finally:
        os.close(step)


@contextmanager
def unlocked(name: str, folder: int) -> Iterator[None]:
    """Let us read a file or folder of ours, whatever permissions its owner took from us, until the end of the block.

    Raises:
        OSError: If it is not ours, or is a link.
    """
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        facts = os.fstat(handle)
        mode = stat.S_IMODE(facts.st_mode)
        needed = stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(facts.st_mode) else 0)
        here = Path(f"/proc/self/fd/{handle}")
        locked = mode & needed != needed and facts.st_uid == os.geteuid() and not stat.S_ISLNK(facts.st_mode)
        if locked:
            here.chmod(mode | needed)
        try:
            yield
        finally:
            if locked:
                here.chmod(mode)
    finally:
        os.close(handle)


def copy_out(root: Path, parts: Sequence[str], target: Path) -> None:
    """Copy a file, or a folder's content, out of a sandbox; links and special files below are left behind.

    Args:
        root: Folder of the sandbox.
        parts: The path below it.
        target: File, or folder, to write.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        SandboxPathError: If the path leads through a link, or too much lies below it.
        SandboxDiskFullError: If the disk is full.
    """
    with sandbox_errors("copying out of the sandbox"), open_folder(root, parts[:-1]) as parent:
        name = parts[-1] if parts else "."
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            with open_folder(root, parts) as folder:
                _copy_tree_out(folder, target, _Budget())
        elif stat.S_ISREG(mode):
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file_out(parent, name, target, _Budget())
        else:
            raise SandboxPathError(f"{'/'.join(parts)!r} is a link or a special file and is not copied out")


def remove(root: Path) -> None:
    """Delete a sandbox's folder, whatever permissions and depth an agent has left in it."""
    try:
        shutil.rmtree(root)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        _remove_stubborn(str(root))


def _remove_stubborn(name: str, cwd: str | None = None) -> None:
    """Delete from the leaves up, by short relative names, opening what was locked."""
    import subprocess  # noqa: PLC0415  seldom needed

    subprocess.run(["chmod", "-R", "u+rwX", "--", name], cwd=cwd, check=False, capture_output=True)
    subprocess.run(["rm", "-rf", "--one-file-system", "--", name], cwd=cwd, check=True, capture_output=True)


@dataclass(slots=True)
class _Budget:
    """What is left of one copy's limits."""

    bytes_left: int = MAX_COPY_BYTES

    def spend(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise SandboxPathError(f"more than {MAX_COPY_BYTES} bytes to copy out")


@contextmanager
def sandbox_errors(doing: str) -> Iterator[None]:
    """Translate what the file system complains about.

    Args:
        doing: What is being done, for the sentence.

    Raises:
        SandboxPathError: If a path leads through a link.
        SandboxDiskFullError: If the disk is full.
    """
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise SandboxDiskFullError(f"{doing}: the disk is full") from error
            case errno.ELOOP | errno.ENOTDIR | errno.EISDIR | errno.EINVAL:
                raise SandboxPathError(f"{doing}: {error.filename!r} is a link, or not of the right kind") from error
            case _:
                raise


@contextmanager
def open_folder(
    root: Path | str, parts: Sequence[str], *, make: bool = False, owner: int | None = None
) -> Iterator[int]:
    """Open a folder below a root, one step at a time, so that no step can be a link.

    Raises:
        OSError: `ELOOP` or `ENOTDIR` for a link.
    """
    folder = os.open(root, _OPEN_FOLDER)
    try:
        for part in parts:
            if make:
                make_folder(part, folder, owner)
            step = os.open(part, _OPEN_FOLDER, dir_fd=folder)
            os.close(folder)
            folder = step
        yield folder
    finally:
        os.close(folder)


def make_folder(name: str, parent: int, owner: int | None = None) -> None:
    """Make a folder unless something of its name is there."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return
    if owner is not None:
        os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)


def _copy_tree_in(source: Path, folder: int, owner: int | None, edit: _Edit) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_symlink():
                _unlink(entry.name, folder)
                os.symlink(os.readlink(entry.path), entry.name, dir_fd=folder)  # noqa: PTH115  not below us
            elif entry.is_dir():
                make_folder(entry.name, folder, owner)
                with open_step(entry.name, folder) as step:
                    _copy_tree_in(Path(entry.path), step, owner, edit)
            elif entry.is_file():
                _copy_file_in(Path(entry.path), folder, entry.name, owner, edit)


def _copy_file_in(source: Path, folder: int, name: str, owner: int | None, edit: _Edit) -> None:
    _unlink(name, folder)
    with source.open("rb") as reading:
        mode = os.fstat(reading.fileno()).st_mode & 0o777
        writing = os.open(name, _MAKE_FILE, mode | stat.S_IWUSR, dir_fd=folder)
        try:
            if edit is None:
                copy_bytes(reading.fileno(), writing)
            else:
                os.write(writing, edit(reading.read()))
            os.fchmod(writing, mode)
            if owner is not None:
                os.fchown(writing, owner, owner)
        finally:
            os.close(writing)


def _copy_tree_out(folder: int, target: Path, budget: _Budget, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise SandboxPathError(f"folders are nested more than {MAX_DEPTH} deep")
    target.mkdir(parents=True, exist_ok=True)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with open_step(entry.name, folder) as step:
                    _copy_tree_out(step, target / entry.name, budget, depth + 1)
            elif entry.is_file(follow_symlinks=False):
                _copy_file_out(folder, entry.name, target / entry.name, budget)


def _copy_file_out(folder: int, name: str, target: Path, budget: _Budget) -> None:
    reading = os.open(name, _OPEN_FILE, dir_fd=folder)
    try:
        facts = os.fstat(reading)
        if not stat.S_ISREG(facts.st_mode):
            return
        budget.spend(facts.st_size)
        with target.open("wb") as writing:
            copy_bytes(reading, writing.fileno())
        target.chmod((facts.st_mode & 0o777) | stat.S_IRUSR | stat.S_IWUSR)
    finally:
        os.close(reading)


def copy_bytes(reading: int, writing: int) -> None:
    """Copy to the end, in the kernel and by reference where the file system can."""
    try:
        while os.copy_file_range(reading, writing, _CHUNK_BYTES):
            pass
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise
        while os.sendfile(writing, reading, None, _CHUNK_BYTES):
            pass


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
