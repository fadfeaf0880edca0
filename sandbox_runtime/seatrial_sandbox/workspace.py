"""The folder that an agent's tools may touch, and nothing beside it."""

import os
import re
import stat
from pathlib import Path, PurePosixPath

from mcp.server.mcpserver.exceptions import ToolError


class Workspace:
    """Turns the paths that a model writes into files under one folder.

    `root` may be set after the servers were built: a warm process builds them before it knows the sandbox.
    """

    def __init__(self, root: Path, name: str = "/workspace") -> None:
        """Open a workspace.

        Args:
            root: The folder.
            name: What the model calls the folder.
        """
        self.root = root
        self.name = name

    def resolve(self, path: str) -> Path:
        """The file or folder that a model's path names; it need not exist.

        Raises:
            ToolError: If the path leads out of the workspace or through a symbolic link.
        """
        relative = self._relative(path)
        here = self.root
        for part in relative.parts:
            here /= part
            try:
                mode = here.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            except OSError as error:
                raise ToolError(f"cannot use path {path!r}: {error.strerror}") from error
            if stat.S_ISLNK(mode):
                raise ToolError(f"{self.show(here)!r} is a symbolic link; tools do not follow links")
        return self.root / relative

    def file(self, path: str) -> Path:
        """The regular file that a model's path names.

        Raises:
            ToolError: If there is no such file.
        """
        found = self.resolve(path)
        if found.is_file():
            return found
        if found.is_dir():
            raise ToolError(f"{path!r} is a folder, not a file; list_files shows what is in it")
        if found.exists():
            raise ToolError(f"{path!r} is not a regular file")
        raise ToolError(f"there is no file {path!r}{self._nearest(found)}")

    def folder(self, path: str) -> Path:
        """The folder that a model's path names.

        Raises:
            ToolError: If there is no such folder.
        """
        found = self.resolve(path)
        if found.is_dir():
            return found
        if found.exists():
            raise ToolError(f"{path!r} is a file, not a folder")
        raise ToolError(f"there is no folder {path!r}{self._nearest(found)}")

    def show(self, path: Path) -> str:
        """How the model names a path: relative to the workspace."""
        return str(path.relative_to(self.root))

    def localise(self, code: str) -> str:
        """Shell code with the workspace's name replaced by its folder, where a sandbox could not be given the name."""
        if str(self.root) == self.name:
            return code
        return re.sub(rf"(?<![\w/.]){re.escape(self.name)}(?![\w-])", str(self.root), code)

    def _relative(self, path: str) -> PurePosixPath:
        if "\0" in path or not path:
            raise ToolError("path is empty" if not path else "path holds a NUL character")
        normal = os.path.normpath(path)
        if normal.startswith("/"):
            for base in (self.name, str(self.root)):
                if PurePosixPath(normal).is_relative_to(base):
                    return PurePosixPath(normal).relative_to(base)
        elif PurePosixPath(normal).parts[:1] != ("..",):
            return PurePosixPath(normal)
        raise ToolError(f"{path!r} is outside the workspace; use a path relative to {self.name}, such as 'notes.txt'")

    def _nearest(self, missing: Path) -> str:
        """A hint for a path that does not exist: a name that is spelt alike, or what the folder holds."""
        from difflib import get_close_matches  # noqa: PLC0415  seldom needed

        folder = missing.parent
        while not folder.is_dir():
            folder = folder.parent
        names = sorted(entry.name for entry in os.scandir(folder))
        close = get_close_matches(missing.name, names, n=3, cutoff=0.6)
        if close:
            return "; did you mean " + " or ".join(repr(self.show(folder / name)) for name in close) + "?"
        listing = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        return f"; {self.show(folder)!r} holds: {listing or 'nothing'}"
