"""The audit log: a JSON line for every question, and the source of what a resumed run has used up."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from seatrial_rollout.judge.budget import NOTHING, Usage


class Ending(StrEnum):
    """How a question ended."""

    ANSWERED = "Answered"
    """A provider answered."""
    CACHED = "Cached"
    """It had been answered before."""
    REFUSED = "Refused"
    """A provider found fault with it."""
    NO_VERDICT = "NoVerdict"
    """Nobody answered, or the gateway ended before."""
    OVER_BUDGET = "OverBudget"
    """The trial or the run may ask no more."""
    NOT_ALLOWED = "NotAllowed"
    """It came without a valid token: from before verification, after its deadline, or from elsewhere."""


@dataclass(frozen=True, slots=True)
class Record:
    """One question; never a key or a token."""

    ending: Ending = Ending.NO_VERDICT
    trial: str = ""
    """Empty if nobody is known to have asked."""
    model: str = ""
    question: str = ""
    """Hash of its content."""
    answer: str | None = None
    detail: str = ""
    """Why there is none."""
    usage: Usage = NOTHING
    sends: Sequence[Any] = ()
    """Each send: key, status, seconds."""
    body: Any = None
    """The question, if it is to be kept."""


class AuditLog:
    """Appends to a file; a line is written in one piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def usage(self) -> Usage:
        """What the run has used up so far; a line that was cut off by the end of a process counts nothing."""
        total = NOTHING
        if self._path.exists():
            with self._path.open(encoding="utf-8") as lines:
                for line in lines:
                    try:
                        total += Usage(**json.loads(line)["usage"])
                    except (ValueError, KeyError, TypeError):
                        continue
        return total

    def write(self, record: Record) -> None:
        """Add a line."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
            if self._file.tell():
                self._file.write("\n")  # ends a line that was cut off
        facts = {name: value for name, value in asdict(record).items() if value not in (None, "", ())}
        self._file.write(json.dumps({"time": round(time.time(), 3), **facts}, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
