"""Whether a task gives its answer away: texts of the solution and of expected results in what an agent can read."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

_MIN_LINE_CHARS = 24
"""Shorter lines are found anywhere."""
_MIN_FILE_BYTES = 16
_MAX_READ_BYTES = 1_000_000
_EXPECTED = re.compile(r"answer|expected|gold|oracle|reference|solution|truth", re.IGNORECASE)
_GIVEAWAYS = frozenset({"solve.sh", "test.sh", "rubric.json", "reward.json", "reward.txt"})
_COMMON = re.compile(r"^\s*(#|import |from |set -|cd |mkdir |export |exit |fi$|done$|def |return |if __name__)")


def find_leaks(task: Path) -> Iterator[str]:
    """What gives a task's answer away, one sentence each.

    An answer that an agent has to look up stands in the world by design, so that values are not searched for. What is
    searched for is the solution's own text, whole files that verifiers compare with, and files with telling names.

    Args:
        task: The task's folder.
    """
    world = task / "environment" / "files"
    visible = [task / "instruction.md", *_files(world)]
    digests = {_digest(path): path for path in visible}
    for path in _secrets(task):
        if path.stat().st_size >= _MIN_FILE_BYTES and (copy := digests.get(_digest(path))):
            yield f"{path.relative_to(task)} is also {copy.relative_to(task)}"
    for path in _files(world):
        if path.name in _GIVEAWAYS:
            yield f"the world holds {path.relative_to(task)}"
    lines = {line: path for path in _files(task / "solution") for line in _telling_lines(path)}
    for path in visible:
        text = _text(path)
        for line, origin in lines.items():
            if line in text:
                yield f"{path.relative_to(task)} has a line of {origin.relative_to(task)}: {line!r}"


def _secrets(task: Path) -> Iterator[Path]:
    """Files that an agent must not see: the solution, and results that verifiers compare with."""
    yield from _files(task / "solution")
    yield from (path for path in _files(task / "tests") if _EXPECTED.search(path.name))


def _telling_lines(path: Path) -> Iterator[str]:
    for line in _text(path).splitlines():
        if len(line.strip()) >= _MIN_LINE_CHARS and not _COMMON.match(line):
            yield line.strip()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(path: Path) -> str:
    """The beginning of a file as text; nothing of a file that is none."""
    with path.open("rb") as file:
        data = file.read(_MAX_READ_BYTES)
    return "" if b"\0" in data else data.decode(errors="replace")
