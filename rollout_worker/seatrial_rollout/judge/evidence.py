"""What an agent's work consists of: its final answer, and what its files say that they did not say before."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from seatrial_rollout.judge.rubric import ChangeKind, FileChange, Work
from seatrial_sandbox.documents.extract import Extract, media_type
from seatrial_sandbox.documents.extractor import Extractor
from seatrial_sandbox.state import changes as state
from seatrial_sandbox.state.manifest import Entry, EntryType, Hasher, Manifest, scan

_FILE_BYTES = 64 * 1024
"""Most text of one file."""
_ALL_BYTES = 512 * 1024
"""Most text of all files."""
_MAX_FILES = 1000
_ANSWER_CHARS = 64 * 1024
_KINDS = {
    state.ChangeKind.ADDED: ChangeKind.ADDED,
    state.ChangeKind.CHANGED: ChangeKind.CHANGED,
    state.ChangeKind.REMOVED: ChangeKind.REMOVED,
}


def collect(task: str, answer: str, before: Path, after: Path) -> Work:
    """Compare two folders; blocking, and documents are read by a process of their own.

    Args:
        task: What was asked for.
        answer: The final answer.
        before: The world as it was; a folder that is not there is an empty one.
        after: The world as the agent left it.
    """
    with Extractor() as extractor:
        return Work(task, answer[:_ANSWER_CHARS], list(_changes(before, after, extractor)))


def told_change(kind: state.ChangeKind, path: str, size: int, extract: Extract | None) -> FileChange:
    """A change that a sandbox has told of.

    Args:
        kind: What happened.
        path: The file.
        size: Its bytes.
        extract: What it says now, if its type is known.
    """
    if kind is state.ChangeKind.REMOVED:
        return FileChange(_KINDS[kind], path)
    return FileChange(_KINDS[kind], path, after=_unknown(size) if extract is None else _shown(extract))


def bounded(task: str, answer: str, changes: Sequence[FileChange]) -> Work:
    """Work of changes that were told, as much of it as a judge is shown."""
    left, shown = _ALL_BYTES, list[FileChange]()
    for change in changes[:_MAX_FILES]:
        text = change.after[: min(_FILE_BYTES, left)]
        left -= len(text)
        is_cut = len(text) < len(change.after)
        shown.append(replace(change, after=f"{text}\n[cut here]" if is_cut else text))
    return Work(task, answer[:_ANSWER_CHARS], shown)


def _changes(before: Path, after: Path, extractor: Extractor) -> Iterator[FileChange]:
    left = _ALL_BYTES
    found = state.changes(_scan(before), _scan(after))
    files = (change for change in found if _is_file(change.before) or _is_file(change.after))
    for number, change in enumerate(files):
        if _same_content(change):
            continue
        if number >= _MAX_FILES:
            yield FileChange(_KINDS[change.kind], change.path, after="[not shown: there are too many files]")
            continue
        texts = [_read(root / change.path, extractor, min(_FILE_BYTES, left)) for root in (before, after)]
        left -= sum(map(len, texts))
        yield FileChange(_KINDS[change.kind], change.path, *texts)


def _scan(root: Path) -> Manifest:
    return scan(root, Hasher()) if root.is_dir() else Manifest({})


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.type is EntryType.FILE


def _same_content(change: state.Change) -> bool:
    """Whether only permissions differ: worlds are brought into sandboxes with others."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.sha256 == after.sha256


def _read(path: Path, extractor: Extractor, max_bytes: int) -> str:
    """What a file says; empty if it is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if not media_type(path.name):
            return _unknown(os.fstat(descriptor).st_size)
        if max_bytes <= 0:
            return "[not shown: there is too much text]"
        return _shown(extractor.extract(path.name, descriptor, max_bytes))
    finally:
        os.close(descriptor)


def _unknown(size: int) -> str:
    return f"[{size} bytes of an unknown type]"


def _shown(extract: Extract) -> str:
    if extract.error:
        return f"[cannot be read: {extract.error}]"
    parts = []
    for part in extract.parts:
        rows = "\n".join("\t".join(row) for row in part.rows)
        parts.append("\n".join(filter(None, (part.title and f"## {part.title}", part.text, rows))))
    return "\n".join(parts) + ("\n[cut here]" if extract.truncated else "")
