"""Where things lie: paths inside a sandbox, and the host folders behind them."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seatrial_api.sandbox_token import Phase
from seatrial_sandbox.errors import SandboxPathError

HOME = "/home/agent"
VERIFIER_HOME = "/home/verifier"
"""Home of the verifier where nothing can be mounted over the agent's."""
TESTS = "/tests"
VERIFIER_LOGS = "/logs/verifier"

_SHARED = {
    "/solution": "solution",
    "/logs/agent": "agent-logs",
    "/logs/artifacts": "artifacts",
    "/tmp": "tmp",  # noqa: S108  the sandbox's own
}
_OF_PHASE = {
    "Agent": {HOME: "home"},
    "Verify": {HOME: "verifier-home", TESTS: "tests", VERIFIER_LOGS: "verifier-logs"},
}
_RESERVED = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/proc",
    "/dev",
    "/sys",
    "/home",
    "/logs",
    *_SHARED,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Maps the writable paths of a sandbox to folders under one host folder, and hides the rest of the host."""

    root: Path
    """Host folder that holds all of the sandbox."""
    workdir: str = "/workspace"
    """Where the world's files lie and where commands start."""
    in_place: bool = False
    """Whether paths are what they say, below the root: in a container, which needs no mapping."""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.workdir)
        taken = f"{path}/".startswith(tuple(f"{reserved}/" for reserved in (*_RESERVED, TESTS)))
        if not path.is_absolute() or path == PurePosixPath("/") or ".." in path.parts or taken:
            raise SandboxPathError(f"workdir is {self.workdir!r}; it must be a folder of its own, such as /workspace")

    def folders(self, phase: Phase) -> dict[str, Path]:
        """Host folder behind each writable path."""
        names = {self.workdir: "workspace", **_SHARED, **_OF_PHASE[phase]}
        if not self.in_place:
            return {path: self.root / name for path, name in names.items()}
        return {path: self.root / path[1:] for path in (*(names.keys() - {HOME}), self.home(phase))}

    def home(self, phase: Phase) -> str:
        """Home of whoever acts; the verifier's is a fresh one."""
        return VERIFIER_HOME if self.in_place and phase is Phase.VERIFY else HOME

    def locate(self, path: str, phase: Phase) -> tuple[Path, tuple[str, ...]]:
        """The host folder behind a path, and the parts of the path below it.

        Raises:
            SandboxPathError: If no writable folder holds the path in this phase.
        """
        wanted = PurePosixPath(self.workdir, path)
        if ".." in wanted.parts:
            raise SandboxPathError(f"{path!r} holds '..'")
        for target, folder in self.folders(phase).items():
            if wanted.is_relative_to(target):
                return folder, wanted.relative_to(target).parts
        raise SandboxPathError(
            f"{path!r} is not in a writable folder of the sandbox ({', '.join(self.folders(phase))})"
        )

    def localise(self, text: str, phase: Phase) -> str:
        """Text with sandbox paths replaced by host folders: what plain processes get instead of mounts."""
        folders = {**self.folders(Phase.VERIFY), **self.folders(phase)}
        paths = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
        return re.sub(rf"(?<![\w/.])({paths})(?![\w-])", lambda match: str(folders[match[1]]), text)
