"""MCP server `filesystem`: look at, search and write the files of the workspace."""

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

MAX_READ_BYTES = 16 * 1024 * 1024
"""A larger file is read by lines only."""
MAX_SEARCH_BYTES = 4 * 1024 * 1024
"""Files larger than this are left out of a text search."""
MAX_MATCHES = 200
MAX_ENTRIES = 2000

_File = Annotated[str, Field(description="File, relative to the workspace.")]
_Folder = Annotated[str, Field(description="Folder, relative to the workspace.")]


class FilesystemTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def list_files(self, path: _Folder = ".") -> str:
        """List a folder: one entry a line, folders end with a slash."""
        folder = self._workspace.folder(path)
        return "\n".join(_label(entry) for entry in _entries(folder)[:MAX_ENTRIES])

    def tree(self, path: _Folder = ".") -> str:
        """List a folder with everything below it, indented by depth."""
        folder = self._workspace.folder(path)
        lines: list[str] = []
        for entry, depth in _walk(folder):
            if len(lines) == MAX_ENTRIES:
                lines.append("[... more entries left out; ask for a folder below ...]")
                break
            lines.append("  " * depth + _label(entry))
        return "\n".join(lines)

    def file_info(self, path: _File) -> str:
        """Tell type, size in bytes and time of last change of a file or folder."""
        found = self._workspace.resolve(path)
        if not found.exists():
            self._workspace.file(path)  # says what is there instead
        facts = found.stat()
        kind = "folder" if stat.S_ISDIR(facts.st_mode) else "file"
        changed = _utc(facts.st_mtime)
        return f"path: {self._workspace.show(found)}\ntype: {kind}\nsize: {facts.st_size}\nchanged: {changed}"

    def read_text_file(
        self,
        path: _File,
        lines: Annotated[str | None, Field(description="Lines to read, such as '1-50'; all if left out.")] = None,
    ) -> str:
        """Read a text file, as a whole or some of its lines."""
        file = self._workspace.file(path)
        if lines is not None:
            return _read_lines(file, path, lines)
        size = file.stat().st_size
        if size > MAX_READ_BYTES:
            raise ToolError(f"{path!r} has {size} bytes, too many to read at once; ask for lines, such as '1-200'")
        return _decode(file.read_bytes(), path)

    def search_files(
        self,
        query: Annotated[str, Field(description="Text to find in names and in text files; case does not matter.")],
        path: _Folder = ".",
        pattern: Annotated[str, Field(description="Only files whose name matches, such as '*.csv'.")] = "*",
    ) -> str:
        """Find files by name and lines by text: answers with `file` or `file:line: text`, one a line."""
        folder = self._workspace.folder(path)
        needle = query.lower()
        found: list[str] = []
        for entry, _ in _walk(folder):
            if not entry.is_file(follow_symlinks=False) or not fnmatch(entry.name, pattern):
                continue
            name = self._workspace.show(Path(entry.path))
            if needle in entry.name.lower():
                found.append(name)
            found += _matching_lines(entry, name, needle)
            if len(found) >= MAX_MATCHES:
                found = [*found[:MAX_MATCHES], f"[only the first {MAX_MATCHES} matches; narrow the search]"]
                break
        return "\n".join(found) or f"nothing matches {query!r}"

    def write_text_file(
        self, path: _File, text: Annotated[str, Field(description="The whole content of the file.")]
    ) -> str:
        """Write a text file; it is made, with its folders, or replaced."""
        file = self._workspace.resolve(path)
        if file.is_dir():
            raise ToolError(f"{path!r} is a folder; name a file in it")
        file.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode(errors="surrogatepass")
        file.write_bytes(data)
        return f"wrote {len(data)} bytes to {self._workspace.show(file)}"


def build(workspace: Workspace) -> ToolServer:
    """The server `filesystem` over a workspace."""
    server = ToolServer("filesystem", "Looks at, searches and writes the files of the workspace.")
    tools = FilesystemTools(workspace)
    server.expose(tools.list_files, advice="use search_files")
    server.expose(tools.tree, advice="ask for a folder below")
    server.expose(tools.file_info)
    server.expose(tools.read_text_file, advice="ask for lines, such as '1-200'")
    server.expose(tools.search_files, advice="narrow the search")
    server.expose(tools.write_text_file)
    return server


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _walk(folder: Path) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Everything below a folder with its depth, parents first; links are not followed."""
    stack = [(entry, 0) for entry in reversed(_entries(folder))]
    while stack:
        entry, depth = stack.pop()
        yield entry, depth
        if entry.is_dir(follow_symlinks=False):
            stack += [(child, depth + 1) for child in reversed(_entries(entry.path))]


def _label(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"{entry.name} (link, not followed)"
    return entry.name + ("/" if entry.is_dir() else "")


def _utc(seconds: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415  seldom needed

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        hint = "; the sheets tools read spreadsheets" if path.lower().endswith((".xlsx", ".xls")) else ""
        raise ToolError(f"{path!r} is not a text file (not UTF-8){hint}") from None


def _read_lines(file: Path, path: str, lines: str) -> str:
    first, _, last = lines.partition("-")
    if not first.strip().isdecimal() or (last and not last.strip().isdecimal()) or int(first) < 1:
        raise ToolError(f"lines is {lines!r}; write a number or a range, such as '7' or '1-50'")
    begin, end = int(first), int(last or first)
    kept = bytearray()
    number = 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number > end:
                break
            if number >= begin:
                kept += line
    if not kept and number:
        raise ToolError(f"{path!r} has {number} lines; {lines!r} is beyond its end")
    return _decode(bytes(kept), path)


def _matching_lines(entry: os.DirEntry[str], name: str, needle: str) -> list[str]:
    if entry.stat(follow_symlinks=False).st_size > MAX_SEARCH_BYTES:
        return []
    try:
        text = Path(entry.path).read_text("utf-8-sig")
    except (UnicodeDecodeError, PermissionError):
        return []
    if needle not in text.lower():
        return []
    return [
        f"{name}:{number}: {line.strip()[:300]}"
        for number, line in enumerate(text.splitlines(), start=1)
        if needle in line.lower()
    ]
