"""The files of a sandbox on this machine: remembered, packed and put back as `sandboxd` does with a pod's."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from seatrial_api.sandbox_token import Phase
from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxStateError
from seatrial_sandbox.layout import Layout
from seatrial_sandbox.state.archive import pack
from seatrial_sandbox.state.changes import changes
from seatrial_sandbox.state.manifest import Hasher, Manifest, merged, scan
from seatrial_sandbox.state.restore import restore


@dataclass(slots=True)
class HostFiles:
    """All that an agent may write, in the host's folders behind it; its methods block."""

    layout: Layout
    hasher: Hasher
    _newest: Manifest | None = field(default=None, init=False)

    def snapshot(self, archive: BinaryIO | None, base: str) -> str:
        """See `interface.Sandbox.snapshot`."""
        known = set() if not base else self._remembered(base).hashes
        state = self._scan()
        if archive is not None:
            state = pack(state, self.layout.root, archive, known=known).manifest
            archive.flush()
        self._newest = state
        return state.snapshot

    def restore(self, archives: Sequence[BinaryIO], snapshot: str, owner: int | None) -> None:
        """See `interface.Sandbox.restore`.

        Args:
            archives: Of the snapshot's bases, then its own.
            snapshot: Its name.
            owner: Who the files are to belong to; none if that is us.
        """
        before = self._scan()
        after = restore(archives, snapshot, before, self.layout.root, self._places)
        if owner is not None:
            for change in changes(before, after):
                if change.after is not None:
                    self._give(change.path.split("/"), owner)
        self._newest = after

    @property
    def _places(self) -> list[str]:
        return [folder.name for folder in self.layout.folders(Phase.AGENT).values()]

    def _remembered(self, snapshot: str) -> Manifest:
        if self._newest is None or self._newest.snapshot != snapshot:
            raise SandboxStateError(f"the newest snapshot is not {snapshot[:64]!r}")
        return self._newest

    def _scan(self) -> Manifest:
        root = self.layout.root
        return merged(scan(root / place, self.hasher, prefix=place) for place in self._places)

    def _give(self, parts: Sequence[str], owner: int) -> None:
        with suppress(FileNotFoundError), files.open_folder(self.layout.root, parts[:-1]) as folder:
            os.chown(parts[-1], owner, owner, dir_fd=folder, follow_symlinks=False)
