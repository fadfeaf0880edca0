"""A sandbox's files outside of it."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from seatrial_rollout.environment.interface import Sandbox


@dataclass(slots=True)
class SavedFiles:
    """What a trial's sandbox holds, kept so that another one can be given it.

    The first state is only named: every sandbox of the trial begins with it. Each later archive holds the contents
    that no earlier one and not the first state has, so that a snapshot costs what has changed since the one before.
    """

    snapshot: str = field(default="", init=False)
    """Name of the newest state."""
    archives: list[BinaryIO] = field(default_factory=list, init=False)
    """Files without a name, the oldest first."""

    async def begin(self, sandbox: Sandbox) -> None:
        """Take a fresh sandbox for the one to save; it becomes what was saved before, if anything was."""
        first = await sandbox.snapshot(None)
        if self.archives:
            await sandbox.restore(self.archives, self.snapshot)
        else:
            self.snapshot = first

    async def save(self, sandbox: Sandbox, folder: Path) -> None:
        """Keep the sandbox's files as they are now, on the disk that holds a folder."""
        archive = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  it is kept
        try:
            snapshot = await sandbox.snapshot(archive, self.snapshot)
        except BaseException:
            archive.close()
            raise
        if snapshot == self.snapshot:
            archive.close()
        else:
            self.snapshot = snapshot
            self.archives.append(archive)

    def close(self) -> None:
        """Forget everything."""
        for archive in self.archives:
            archive.close()
        self.archives.clear()
        self.snapshot = ""
