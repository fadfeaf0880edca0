"""What an agent has done to the files that it may write, as a daemon or the owner of a local sandbox sees it."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from seatrial_api.finding import Finding
from seatrial_api.sandbox_token import Phase
from seatrial_sandbox import files
from seatrial_sandbox.layout import Layout
from seatrial_sandbox.state.audit import HEAD_BYTES, findings, media_type
from seatrial_sandbox.state.changes import Change, changes
from seatrial_sandbox.state.manifest import EntryType, Hasher, Manifest, merged, scan


@dataclass(slots=True)
class Audit:
    """What is remarkable, and how much there is of what."""

    findings: list[Finding]
    files: int = 0
    """Files that were added or changed."""
    bytes_by_type: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True
    """False where a tree had too much in it, or was too deep, to be looked at in full."""


def agent_places(layout: Layout) -> list[str]:
    """Paths that the agent may write, as a state names them."""
    return [path.lstrip("/") for path in layout.folders(Phase.AGENT)]


def agent_state(layout: Layout, hasher: Hasher) -> Manifest:
    """All that the agent may write, as it is now."""
    folders = layout.folders(Phase.AGENT)
    return merged(scan(folder, hasher, prefix=path.lstrip("/")) for path, folder in folders.items() if folder.is_dir())


def audit(layout: Layout, before: Manifest, after: Manifest, incidents: Sequence[Finding]) -> Audit:
    """Every finding in what was added or changed, after what was refused or undone meanwhile."""
    found = Audit([*incidents])
    found.is_complete = after.omitted == 0
    places = agent_places(layout)
    for change in changes(before, after):
        head = b""
        if is_file(change) and change.after is not None:
            with opened(layout, change.path) as document:
                head = b"" if document is None else os.pread(document, HEAD_BYTES, 0)
            found.files += 1
            found.bytes_by_type[media_type(change.path, head)] += change.after.size
        found.findings += findings(change, head, places)
    return found


def is_file(change: Change) -> bool:
    """Whether there is a file now."""
    return change.after is not None and change.after.type is EntryType.FILE


@contextmanager
def opened(layout: Layout, path: str) -> Iterator[int | None]:
    """An agent's file, by its path in a state; none if it is gone."""
    try:
        folder, parts = layout.locate(f"/{path}", Phase.AGENT)
        with (
            files.open_folder(folder, parts[:-1]) as parent,
            files.unlocked(parts[-1], parent),
            files.opened(parts[-1], parent) as document,
        ):
            yield document
    except OSError:
        yield None
