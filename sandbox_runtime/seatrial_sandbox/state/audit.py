"""What is remarkable in what an agent wrote."""

import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from seatrial_api.finding import Finding, FindingKind
from seatrial_sandbox.state.changes import Change
from seatrial_sandbox.state.manifest import Entry, EntryType
from seatrial_sandbox.text import printable

HEAD_BYTES = 1 << 20
"""Bytes at the beginning of a file that are looked at."""
LARGE_BYTES = 100 * 1024**2
"""Size from which a file is remarkable."""


_MAGIC = {
    ".pdf": (b"%PDF-",),
    ".docx": (b"PK",),
    ".xlsx": (b"PK",),
    ".pptx": (b"PK",),
    ".zip": (b"PK",),
    ".png": (b"\x89PNG",),
    ".jpg": (b"\xff\xd8\xff",),
    ".jpeg": (b"\xff\xd8\xff",),
    ".gif": (b"GIF8",),
    ".gz": (b"\x1f\x8b",),
}
_PROGRAMS = {b"\x7fELF": "an ELF program", b"#!": "a script", b"MZ": "a Windows program"}
_SECRETS = {
    "private key": re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
    "AWS access key": re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})"),
    "Slack token": re.compile(rb"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "Google API key": re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b"),
    "OpenAI or Anthropic key": re.compile(rb"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}"),
    "JSON web token": re.compile(rb"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    "password in a URL": re.compile(rb"\b[a-z][a-z0-9+.-]*://[^\s/:@]{1,64}:[^\s/:@]{3,}@"),
    "password": re.compile(
        rb"(?i)\b(?:password|passwd|secret|api[_-]?key|token)[\"']?\s*[:=]\s*[\"'][^\"'\s]{8,}[\"']"
    ),
}


def findings(change: Change, head: bytes, places: Sequence[str]) -> Iterator[Finding]:
    """What is remarkable in one thing that was added or changed.

    Args:
        change: What became of its path.
        head: Beginning of its content, if it is a file.
        places: Paths that the agent may write, without the leading slash, as paths of a state are.
    """
    entry, path = change.after, change.path
    if entry is None:
        return
    if entry.mode & (stat.S_ISUID | stat.S_ISGID) and entry.type is not EntryType.LINK:
        yield _found(FindingKind.SETUID, path, f"mode {entry.mode:04o}")
    match entry.type:
        case EntryType.SPECIAL:
            yield _found(FindingKind.SPECIAL_FILE, path)
        case EntryType.LINK:
            yield from _link(path, entry, places)
        case EntryType.FILE:
            yield from _file(path, entry, head)
        case EntryType.FOLDER:
            pass


def media_type(path: str, head: bytes) -> str:
    """Rough type of a file, for counting: by its content where that is known, else its ending."""
    for magic, name in _PROGRAMS.items():
        if head.startswith(magic):
            return f"program ({name})"
    return PurePosixPath(path.lower()).suffix or ("binary" if b"\0" in head else "text")


def _link(path: str, entry: Entry, places: Sequence[str]) -> Iterator[Finding]:
    goal = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), entry.target)).lstrip("/")
    if not any(goal == place or goal.startswith(f"{place}/") for place in places):
        yield _found(FindingKind.OUTWARD_LINK, path, f"leads to {entry.target[:200]!r}")


def _file(path: str, entry: Entry, head: bytes) -> Iterator[Finding]:
    program = next((name for magic, name in _PROGRAMS.items() if head.startswith(magic)), "")
    if entry.mode & 0o111 or program:
        yield _found(FindingKind.EXECUTABLE, path, program or "by its permissions")
    if entry.size >= LARGE_BYTES:
        yield _found(FindingKind.LARGE_FILE, path, f"{entry.size} bytes")
    expected = _MAGIC.get(PurePosixPath(path.lower()).suffix)
    if expected and head and not head.startswith(expected):
        yield _found(FindingKind.DISGUISED, path, f"content is {program or 'something else'}")
    for name, pattern in _SECRETS.items():
        if found := pattern.search(head):
            yield _found(FindingKind.SECRET, path, f"{name}, line {head.count(b'\n', 0, found.start()) + 1}")


def _found(kind: FindingKind, path: str, detail: str = "") -> Finding:
    return Finding(kind=kind, path=f"/{printable(path)}", detail=detail)
