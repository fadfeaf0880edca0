"""The page that lists what is tried and what answers it: `python -m tests.escapes.page` writes it."""

from pathlib import Path

from tests.escapes.attempt import Attempt, Category, Place
from tests.escapes.table import ATTEMPTS

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/attempts.md"
_HEAD = """\
# What is tried against sandboxes

<!-- Written by `python -m tests.escapes.page`. -->

Every row is a script that an agent runs in a sandbox of the test suite, beside a neighbour that is looked after each
time. All are refused where a column says so. `tests/escapes` holds the scripts; what they are refused with is checked,
so that a script that fails for another reason fails the suite.

| column | sandbox |
| --- | --- |
| local | the local provider, in namespaces |
| pod | a sandbox pod on a real node, and the same daemon in namespaces of this machine |
| plain | the local provider where it has nothing but processes: **open** means that it gets through there |

"audit" marks what sandboxes' audit tells afterwards; the other attempts fail without leaving anything behind.
"""
_TABLE = (
    "| an agent … | what answers | local | pod | plain | |",
    "| --- | --- | --- | --- | --- | --- |",
)


def page() -> str:
    """The page's text."""
    parts = [_HEAD]
    for category in Category:
        rows = [_row(attempt) for attempt in ATTEMPTS if attempt.category is category]
        parts.append("\n".join([f"## {category}\n", *_TABLE, *rows, ""]))
    return "\n".join(parts)


def _row(attempt: Attempt) -> str:
    plain = {True: "refused", False: "**open**", None: ""}[attempt.plain]
    local = "refused" if Place.LOCAL in attempt.places else ""
    pod = "refused" if Place.POD in attempt.places else ""
    told = "audit" if attempt.recorded else ""
    return f"| {attempt.name} | {attempt.answer} | {local} | {pod} | {plain} | {told} |"


if __name__ == "__main__":
    PAGE.write_text(page())
