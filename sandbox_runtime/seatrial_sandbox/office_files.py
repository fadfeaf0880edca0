"""Opening and replacing the files that office programs write: checked first, and never half written."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.workspace import Workspace

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Largest file that is opened."""
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
"""Largest package once unpacked; more is taken for a zip bomb."""
MAX_MEMBERS = 10_000
"""Most files in a package."""


def read_file(workspace: Workspace, path: str, endings: tuple[str, ...]) -> bytes:
    """The content of a file of the workspace.

    Args:
        workspace: Where it lies.
        path: What the model calls it.
        endings: What its name may end with, such as `.docx`.

    Raises:
        ToolError: If there is no such file, or it is of another kind or too large.
    """
    file = workspace.file(path)
    check_ending(path, endings)
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ToolError(f"{path!r} has {size} bytes; the largest file these tools open has {MAX_FILE_BYTES}")
    return file.read_bytes()


def read_package(workspace: Workspace, path: str, endings: tuple[str, ...]) -> BytesIO:
    """The content of a file that is a zip of XML, as Word, Excel and PowerPoint write it.

    Raises:
        ToolError: As `read_file`, or if it is no such package or unpacks to too much.
    """
    data = BytesIO(read_file(workspace, path, endings))
    check_package(data, path)
    return data


def check_package(data: BytesIO, path: str) -> None:
    """Refuse what is no package, or a zip bomb: no member can unpack to more than it announces.

    Raises:
        ToolError: If it is one.
    """
    try:
        with zipfile.ZipFile(data) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise ToolError(f"{path!r} is damaged or not an office file") from None
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES or len(members) > MAX_MEMBERS:
        raise ToolError(f"{path!r} unpacks to {unpacked} bytes in {len(members)} parts, which is too large")
    data.seek(0)


@contextmanager
def understood(path: str, kind: str) -> Iterator[None]:
    """Around a library that reads a file: whatever it makes of a damaged one, the model learns that it is damaged.

    Args:
        path: What the model calls the file.
        kind: What it should be: `a Word document`.

    Raises:
        ToolError: In place of what the library raised.
    """
    try:
        yield
    except (ToolError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise ToolError(f"{path!r} is damaged or not {kind} ({type(error).__name__})") from error


def check_ending(path: str, endings: tuple[str, ...]) -> None:
    """Refuse a name that does not say what the file is.

    Raises:
        ToolError: If it has none of the endings.
    """
    if not path.lower().endswith(endings):
        raise ToolError(f"{path!r} does not end with {' or '.join(endings)}, which is what these tools work on")


def new_file(workspace: Workspace, path: str, endings: tuple[str, ...]) -> Path:
    """Where a file of the workspace is to be written; folders above it are made.

    Raises:
        ToolError: If the path is outside the workspace, a folder, or of another kind.
    """
    check_ending(path, endings)
    file = workspace.resolve(path)
    if file.is_dir():
        raise ToolError(f"{path!r} is a folder; name a file in it")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def replace_file(path: Path, data: bytes) -> None:
    """Write a file; whoever reads meanwhile sees the old content or the new, never half."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # an earlier writer may have been killed; a link must not be followed
        temporary.write_bytes(data)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)  # noqa: PTH105  the same as Path.replace, and known to be atomic
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
