"""Grades what an agent left: `python verify.py WORKSPACE EXPECTED.json REWARD.json`.

The reward is the share of the expected facts that hold; it is 0 if a file that had nothing to do with them was changed.
"""

import hashlib
import json
import mailbox
import sys
from collections.abc import Callable
from contextlib import closing
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

type Fact = dict[str, Any]


def main() -> None:
    """Write the reward."""
    workspace, expected, reward = map(Path, sys.argv[1:4])
    scores = grade(workspace, json.loads(expected.read_text()))
    reward.write_text(json.dumps(scores) + "\n")


def grade(workspace: Path, expected: dict[str, Any]) -> dict[str, float]:
    """The reward, and what it is made of."""
    held = [holds(workspace, fact) for fact in expected["facts"]]
    harmed = sum(digest(workspace / path) != known for path, known in expected["untouched"].items())
    share = sum(held) / len(held)
    return {"reward": 0.0 if harmed else share, "facts": share, "harmed": float(harmed)}


def digest(file: Path) -> str:
    """Fingerprint of a file; of nothing if there is none, or a link."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() and not file.is_symlink() else ""


def holds(workspace: Path, fact: Fact) -> bool:
    """Whether a fact is true; what cannot be read proves nothing."""
    try:
        return _KINDS[fact["kind"]](workspace, fact)
    except Exception as error:  # noqa: BLE001  an agent's file may be anything
        print(f"{fact['kind']}: {type(error).__name__}", file=sys.stderr)
        return False


def _file(workspace: Path, path: str) -> Path:
    file = workspace / path
    if file.is_symlink() or not file.is_file():
        raise FileNotFoundError(path)
    return file


def _all_in(wanted: list[str], text: str) -> bool:
    """Whether all is said, however it is spaced and written."""
    plain = " ".join(text.lower().replace(",", "").split())
    return all(" ".join(part.lower().replace(",", "").split()) in plain for part in wanted)


def _cell(workspace: Path, fact: Fact) -> bool:
    from openpyxl import load_workbook  # noqa: PLC0415  only the libraries that a task needs

    book = load_workbook(_file(workspace, fact["path"]), data_only=True)
    return bool(book[fact["tab"]][fact["cell"]].value == fact["value"])


def _document(workspace: Path, fact: Fact) -> bool:
    from docx import Document  # noqa: PLC0415

    document = Document(str(_file(workspace, fact["path"])))
    cells = [cell.text for table in document.tables for row in table.rows for cell in row.cells]
    text = "\n".join([*(paragraph.text for paragraph in document.paragraphs), *cells])
    return _all_in(fact["says"], text)


def _table(workspace: Path, fact: Fact) -> bool:
    from docx import Document  # noqa: PLC0415

    rows = Document(str(_file(workspace, fact["path"]))).tables[0].rows
    return [[cell.text.strip() for cell in row.cells] for row in rows] == fact["rows"]


def _slide(workspace: Path, fact: Fact) -> bool:
    from pptx import Presentation  # noqa: PLC0415

    slide = Presentation(str(_file(workspace, fact["path"]))).slides[fact["slide"] - 1]
    texts = [shape.text_frame.text for shape in slide.shapes if shape.has_text_frame]
    texts += [cell.text for shape in slide.shapes if shape.has_table for row in shape.table.rows for cell in row.cells]
    return _all_in(fact["says"], "\n".join(texts))


def _pdf(workspace: Path, fact: Fact) -> bool:
    import pdfplumber  # noqa: PLC0415

    with pdfplumber.open(_file(workspace, fact["path"])) as document:
        return _all_in(fact["says"], "\n".join(page.extract_text() or "" for page in document.pages))


def _sent(workspace: Path, fact: Fact) -> bool:
    with closing(mailbox.mbox(_file(workspace, "mail/Sent.mbox"), create=False)) as box:
        return any(_is_the_mail(box.get_bytes(key), fact) for key in box.iterkeys())


def _is_the_mail(data: bytes, fact: Fact) -> bool:
    message = message_from_bytes(data, _class=EmailMessage, policy=policy.default)
    body = message.get_body(("plain",))
    own = "\n".join(line for line in (body.get_content() if body else "").splitlines() if not line.startswith(">"))
    attached = [part.get_filename() for part in message.iter_attachments()]
    people = f"{message['To']} {message['Cc'] or ''}".lower()
    return fact["to"] in people and _all_in(fact["says"], own) and set(fact.get("attached", [])) <= set(attached)


def _posts(workspace: Path, channel: str) -> list[Fact]:
    lines = _file(workspace, f"chat/channels/{channel}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _said(workspace: Path, fact: Fact) -> bool:
    """By the clerk, after all that was there, and in the right thread."""
    return any(
        post["user"] == "kim" and post.get("thread") == fact.get("thread") and _all_in(fact["says"], post["text"])
        for post in _posts(workspace, fact["channel"])
    )


def _reaction(workspace: Path, fact: Fact) -> bool:
    posts = {post["id"]: post for post in _posts(workspace, fact["channel"])}
    return "kim" in posts[fact["post"]].get("reactions", {}).get(fact["name"], [])


def _event(workspace: Path, fact: Fact) -> bool:
    from icalendar import Calendar  # noqa: PLC0415

    for event in Calendar.from_ical(_file(workspace, "calendar/work.ics").read_bytes()).walk("VEVENT"):
        times = [f"{event[name].dt:%Y-%m-%dT%H:%M}" for name in ("DTSTART", "DTEND")]
        people = event.get("ATTENDEE", [])
        addresses = {str(person) for person in (people if isinstance(people, list) else [people])}
        is_it = event["UID"] == fact["uid"] if "uid" in fact else _all_in([fact["title"]], str(event["SUMMARY"]))
        if is_it and times == [fact["start"], fact["end"]] and {f"mailto:{who}" for who in fact["people"]} <= addresses:
            return True
    return False


_KINDS: dict[str, Callable[[Path, Fact], bool]] = {
    "cell": _cell,
    "document": _document,
    "table": _table,
    "slide": _slide,
    "pdf": _pdf,
    "sent": _sent,
    "said": _said,
    "reaction": _reaction,
    "event": _event,
}

if __name__ == "__main__":
    main()
