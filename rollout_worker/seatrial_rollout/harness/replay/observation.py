"""What a tool answered, in the one form in which two answers are compared. Pure functions."""

import hashlib
import json
import re
import time
from collections.abc import Collection
from dataclasses import dataclass

from mcp_types import CallToolResult

_DAY_SECONDS = 86_400.0
_EXCERPT_CHARS = 200
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d)"  # as ISO 8601 and our tools write a day, or as `ls` and `date` do
    r"[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?"
)
_NOW = "(now)"


@dataclass(frozen=True, slots=True)
class Observation:
    """An answer, as the journal keeps it."""

    sha256: str
    """Of its canonical form, in hex: equal answers have equal hashes."""
    excerpt: str
    """How it begins, for a person who asks what differed."""


def observe(result: CallToolResult, days: Collection[str]) -> Observation:
    """An answer as it is compared: whole, before anything is cut for the model.

    Args:
        result: What the tool answered.
        days: See `days_of_trial`.
    """
    form = canonical(result, days)
    return Observation(hashlib.sha256(form.encode(errors="surrogatepass")).hexdigest(), form[:_EXCERPT_CHARS])


def canonical(result: CallToolResult, days: Collection[str]) -> str:
    """One text for one answer.

    Everything counts that a model could come to know: whether the call failed, and every block of the answer in its
    order, to the character. Left out is what is for clients (`_meta`, annotations) and the order of keys. A point in
    time on one of `days` counts as "now": it is the sandbox's clock that speaks there, as in what `ls -l` prints of a
    file that the agent wrote, and the clock has moved on. Any other date is data.
    """
    form = {
        "content": [
            block.model_dump(mode="json", exclude={"annotations", "meta"}, exclude_none=True)
            for block in result.content
        ],
        "is_error": bool(result.is_error),
        "structured": result.structured_content,
    }
    text = json.dumps(form, sort_keys=True, ensure_ascii=False)
    return _INSTANT.sub(lambda found: _NOW if found[1] in days else found[0], text)


def days_of_trial(began: float, now: float) -> frozenset[str]:
    """Days on which a clock in the sandbox may have been read, wherever its time zone, as dates are written.

    Args:
        began: When the trial began, in seconds since the epoch.
        now: When it is now.
    """
    first, last = began - _DAY_SECONDS, now + _DAY_SECONDS
    moments = [first + day * _DAY_SECONDS for day in range(int((last - first) / _DAY_SECONDS) + 1)]
    formats = ("%Y-%m-%d", "%b %d", "%b %e")
    return frozenset(time.strftime(form, time.gmtime(moment)) for moment in [*moments, last] for form in formats)
