"""Holds a sandbox on this machine to what it may take in all, where no control group does.

The kernel limits each process by itself (`Limits.apply`). What all of them take together is looked at from time to
time: an agent gets past a limit for a moment, but not away with it.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxError, SandboxLimitError
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.processes import ProcessTable

_SECONDS = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20
_MAX_DEPTH = 100
_LOOK_SHARE = 8
"""Folders are walked again once the disk has filled by this part of the limit, whoever filled it."""


@dataclass(slots=True)
class Warden:
    """Looks after one sandbox; see `watch`."""

    limits: Limits
    table: ProcessTable
    folders: Sequence[Path]
    """All that may be written, as this process sees them."""
    clock: Clock = SYSTEM_CLOCK
    _used: tuple[int, int] = field(default=(0, 0), init=False)
    """Bytes and files on the disk when folders were last walked."""

    async def watch(self) -> None:
        """End the largest process while all of them take too much memory; never returns.

        Raises:
            SandboxLimitError: If too much lies on the disk, which ends the sandbox as a node would evict a pod.
        """
        self._used = self._disk()
        while True:
            await self.clock.sleep(_SECONDS)
            self.check_memory()
            self.check_disk()

    def check_memory(self) -> None:
        """End the largest process if all below this one take more than they may."""
        sizes = dict(self._sizes(os.getpid()))
        if sum(sizes.values()) > self.limits.memory_mb * _MIB:
            self.table.end(max(sizes, key=lambda pid: sizes[pid]))

    def check_disk(self) -> None:
        """Walk the folders, if so much was written on their disk that it could be too much.

        Raises:
            SandboxLimitError: If it is.
        """
        used = self._disk()
        most = (self.limits.disk_mb * _MIB, self.limits.files)
        if not any(
            now - before > bound // _LOOK_SHARE for now, before, bound in zip(used, self._used, most, strict=True)
        ):
            return
        self._used = used
        total = _Total(*most)
        for folder in self.folders:
            with suppress(OSError), files.open_folder(folder, ()) as opened:
                total.add(opened)

    def _sizes(self, pid: int) -> Iterator[tuple[int, int]]:
        """Private memory of everything below a process, in bytes."""
        for child in self.table.children(pid):
            with suppress(OSError, ValueError, IndexError):
                resident, shared = (int(word) for word in self.table.read(f"{child}/statm").split()[1:3])
                yield child, (resident - shared) * _PAGE
            yield from self._sizes(child)

    def _disk(self) -> tuple[int, int]:
        """Bytes and files on the disk that holds the sandbox, everybody's."""
        facts = os.statvfs(self.folders[0])
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize, facts.f_files - facts.f_ffree


@dataclass(slots=True)
class _Total:
    """What is left of the limits while folders are walked."""

    bytes_left: int
    files_left: int

    def add(self, folder: int, depth: int = 0) -> None:
        """Count what an open folder holds.

        Raises:
            SandboxLimitError: If nothing is left.
        """
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    self._spend(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    self._enter(entry.name, folder, depth + 1)

    def _enter(self, name: str, folder: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise SandboxLimitError(f"the sandbox was ended: its folders are nested more than {_MAX_DEPTH} deep")
        with suppress(OSError), _unlocked(name, folder), files.open_step(name, folder) as opened:
            self.add(opened, depth)

    def _spend(self, facts: os.stat_result) -> None:
        self.bytes_left -= facts.st_blocks * 512
        self.files_left -= 1
        if self.bytes_left < 0 or self.files_left < 0:
            raise SandboxLimitError("the sandbox was ended: it holds more files, or more in them, than it may")


@contextmanager
def _unlocked(name: str, folder: int) -> Iterator[None]:
    """Let us read a folder that its owner, whose user we have, has locked; by name: here no procfs shows our files."""
    mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    is_locked = mode & 0o500 != 0o500
    if is_locked:
        os.chmod(name, mode | 0o500, dir_fd=folder)
    try:
        yield
    finally:
        if is_locked:
            os.chmod(name, mode, dir_fd=folder)


def told(error: BaseException) -> str:
    """What ended a sandbox, from among what ended with it."""
    if isinstance(error, BaseExceptionGroup):
        return next((text for one in error.exceptions if (text := told(one))), "")
    return str(error) if isinstance(error, SandboxError) else ""
