"""What differs between two states."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from seatrial_sandbox.state.manifest import Entry, Manifest


class ChangeKind(StrEnum):
    """How a path differs."""

    ADDED = "Added"
    CHANGED = "Changed"
    REMOVED = "Removed"


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs."""

    kind: ChangeKind
    path: str
    before: Entry | None
    after: Entry | None


def changes(before: Manifest, after: Manifest) -> Iterator[Change]:
    """What was added, changed and removed, in order of path."""
    for path in sorted(before.entries.keys() | after.entries.keys(), key=lambda path: path.split("/")):
        old, new = before.entries.get(path), after.entries.get(path)
        if old is None:
            yield Change(ChangeKind.ADDED, path, old, new)
        elif new is None:
            yield Change(ChangeKind.REMOVED, path, old, new)
        elif old != new:
            yield Change(ChangeKind.CHANGED, path, old, new)
