"""A small office for tests of the tool servers: one file of every kind, and a right call of every tool over it."""

import json
import mailbox
from email.message import EmailMessage
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from docx import Document
from openpyxl import Workbook
from PIL import Image
from pptx import Presentation
from pptx.util import Inches

CALENDAR = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:event-1
DTSTAMP:20260101T000000Z
DTSTART:20260302T090000Z
DTEND:20260302T093000Z
RRULE:FREQ=WEEKLY;COUNT=4
EXDATE:20260309T090000Z
SUMMARY:Standup
LOCATION:Room 1
ATTENDEE:mailto:ann@acme.example
END:VEVENT
BEGIN:VEVENT
UID:event-2
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20260303
DTEND;VALUE=DATE:20260304
SUMMARY:Fair
END:VEVENT
END:VCALENDAR
"""
USERS = [{"id": "kim", "name": "Kim Vogel", "title": "Clerk", "me": True}, {"id": "ann", "name": "Ann Lee"}]
POSTS = [
    {"id": 1, "user": "ann", "time": "2026-02-01T09:00:00Z", "text": "Morning all"},
    {"id": 2, "user": "kim", "time": "2026-02-01T09:05:00Z", "text": "Hello Ann", "thread": 1},
    {"id": 3, "user": "kim", "time": "2026-02-02T09:05:00Z", "text": "Numbers are in"},
]

CALLS: dict[str, dict[str, dict[str, Any]]] = {
    "filesystem": {
        "list_files": {},
        "tree": {},
        "file_info": {"path": "a.docx"},
        "read_text_file": {"path": "notes.txt"},
        "search_files": {"query": "pay"},
        "write_text_file": {"path": "out/new.txt", "text": "x"},
    },
    "code": {"code_exec": {"code": "echo hello"}},
    "sheets": {
        "list_tabs": {"path": "a.xlsx"},
        "read_tab": {"path": "a.xlsx", "range": "A1:B3"},
        "lookup": {"path": "a.xlsx", "row": "bolt", "column": "count"},
        "aggregate": {"path": "a.csv", "column": "count", "function": "sum"},
        "edit_cell": {"path": "a.xlsx", "row": "bolt", "column": "count", "value": 5},
        "append_row": {"path": "a.csv", "values": ["pin", 3]},
    },
    "workbooks": {
        "create_spreadsheet": {"path": "out/b.xlsx", "rows": [["k", "v"], ["a", 1]], "tab": "New"},
        "write_cells": {"path": "a.xlsx", "cell": "B2", "rows": [[7], ["=B2*2"]]},
        "read_formulas": {"path": "a.xlsx"},
        "add_tab": {"path": "a.xlsx", "tab": "Third"},
        "delete_tab": {"path": "a.xlsx", "tab": "Spare"},
        "create_chart": {"path": "a.xlsx", "tab": "Stock", "range": "A1:B3", "kind": "bar", "title": "Stock"},
    },
    "docs": {
        "read_doc": {"path": "a.docx"},
        "outline": {"path": "a.docx"},
        "search_doc": {"path": "a.docx", "query": "terms"},
        "create_doc": {"path": "out/b.docx", "markdown": "# New\n\n- one\n"},
        "insert_content": {"path": "a.docx", "element": "p0", "markdown": "Inserted"},
        "append_content": {"path": "a.docx", "markdown": "Appended"},
        "set_text": {"path": "a.docx", "element": "t0.r1.c1", "text": "9"},
        "replace_text": {"path": "a.docx", "old": "terms", "new": "rules"},
        "delete_element": {"path": "a.docx", "element": "p1"},
        "add_table_row": {"path": "a.docx", "element": "t0", "values": ["nut", "2"]},
        "format_text": {"path": "a.docx", "element": "p1", "bold": True, "style": "Heading 2"},
        "read_comments": {"path": "a.docx"},
        "add_comment": {"path": "a.docx", "element": "p1", "text": "Sure?"},
        "set_header_footer": {"path": "a.docx", "place": "footer", "text": "Acme"},
        "add_image": {"path": "a.docx", "image": "logo.png"},
    },
    "slides": {
        "list_slides": {"path": "a.pptx"},
        "read_slide": {"path": "a.pptx", "slide": 1},
        "search_slides": {"path": "a.pptx", "query": "plan"},
        "create_deck": {"path": "out/b.pptx", "slides": [{"title": "One", "bullets": ["a", "  b"], "notes": "n"}]},
        "add_slide": {"path": "a.pptx", "title": "Last", "bullets": ["x"]},
        "delete_slide": {"path": "a.pptx", "slide": 2},
        "move_slide": {"path": "a.pptx", "slide": 2, "to": 1},
        "set_text": {"path": "a.pptx", "slide": 1, "shape": 0, "text": "The plan"},
        "replace_text": {"path": "a.pptx", "old": "Plan", "new": "Budget"},
        "set_table_cell": {"path": "a.pptx", "slide": 2, "shape": 1, "cell": "r1.c1", "text": "8"},
        "add_table": {"path": "a.pptx", "slide": 1, "rows": [["a", "b"], ["1", "2"]]},
        "add_chart": {
            "path": "a.pptx",
            "slide": 1,
            "kind": "line",
            "categories": ["x", "y"],
            "series": {"sales": [1, 2]},
        },
        "add_image": {"path": "a.pptx", "slide": 1, "image": "logo.png"},
        "set_notes": {"path": "a.pptx", "slide": 1, "text": "Say hello"},
    },
    "pdf": {
        "read_pdf_pages": {"path": "a.pdf"},
        "search_pdf": {"path": "a.pdf", "query": "invoice"},
        "read_page_as_image": {"path": "a.pdf"},
        "read_image": {"path": "logo.png"},
        "create_pdf": {"path": "out/b.pdf", "markdown": "# New\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"},
    },
    "mail": {
        "list_folders": {},
        "list_mails": {},
        "read_mail": {"mail_id": "Inbox/1"},
        "search_mails": {"query": "invoice"},
        "send_mail": {"to": ["ann@acme.example"], "subject": "Hi", "body": "Hello", "attachments": ["a.pdf"]},
        "reply": {"mail_id": "Inbox/1", "body": "Thanks"},
        "reply_all": {"mail_id": "Inbox/1", "body": "Thanks"},
        "forward": {"mail_id": "Inbox/1", "to": ["bob@acme.example"]},
        "save_attachment": {"mail_id": "Inbox/1", "name": "bill.txt", "path": "out/bill.txt"},
    },
    "chat": {
        "list_channels": {},
        "get_channel_history": {"channel": "general"},
        "get_thread_replies": {"post_id": "general/1"},
        "search_messages": {"query": "numbers"},
        "get_users": {},
        "get_user_profile": {"user": "ann"},
        "post_message": {"channel": "general", "text": "Done"},
        "reply_to_thread": {"post_id": "general/1", "text": "Yes"},
        "add_reaction": {"post_id": "general/1", "reaction": "thumbsup"},
        "delete_post": {"post_id": "general/3"},
    },
    "calendar": {
        "list_calendars": {},
        "list_events": {"first": "2026-03-01", "last": "2026-03-31"},
        "read_event": {"event_id": "work/event-1"},
        "find_free_time": {"first": "2026-03-02T08:00", "last": "2026-03-02T18:00", "minutes": 60},
        "create_event": {"title": "Review", "start": "2026-03-05T10:00", "end": "2026-03-05T11:00"},
        "update_event": {"event_id": "work/event-1", "start": "2026-03-02T10:00"},
        "delete_event": {"event_id": "work/event-2"},
    },
}
"""A right call of every tool, by server."""


def furnish(root: Path) -> None:
    """Write the office."""
    for name, data in _files().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


@cache
def _files() -> dict[str, bytes]:
    return {
        "notes.txt": b"call Nord\npay the bill\n",
        "a.csv": b"item,count\nbolt,42\nnut,7\n",
        "a.docx": _document(),
        "a.xlsx": _workbook(),
        "a.pptx": _deck(),
        "a.pdf": _pdf(),
        "logo.png": _logo(),
        "mail/account.json": json.dumps({"name": "Kim Vogel", "address": "kim@acme.example"}).encode(),
        "mail/Inbox.mbox": _inbox(),
        "chat/users.json": json.dumps(USERS).encode(),
        "chat/channels.json": json.dumps([{"name": "general", "topic": "All", "members": ["kim", "ann"]}]).encode(),
        "chat/channels/general.jsonl": "".join(json.dumps(post) + "\n" for post in POSTS).encode(),
        "calendar/work.ics": CALENDAR.replace("\n", "\r\n").encode(),
    }


def _document() -> bytes:
    document = Document()
    document.add_heading("Contract", 1)
    document.add_paragraph("The terms are these.")
    table = document.add_table(rows=2, cols=2)
    for row, values in enumerate((("item", "count"), ("bolt", "42"))):
        for column, value in enumerate(values):
            table.cell(row, column).text = value
    return _saved(document)


def _workbook() -> bytes:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Stock"
    for row in (["item", "count"], ["bolt", 42], ["nut", 7], ["all", "=SUM(B2:B3)"]):
        sheet.append(row)
    book.create_sheet("Spare")
    return _saved(book)


def _deck() -> bytes:
    deck = Presentation()
    for title in ("The Plan", "Figures"):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        slide.shapes.title.text = title
    table = deck.slides[1].shapes.add_table(2, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for row, values in enumerate((("item", "count"), ("bolt", "42"))):
        for column, value in enumerate(values):
            table.cell(row, column).text = value
    return _saved(deck)


def _pdf() -> bytes:
    from reportlab.lib.styles import getSampleStyleSheet  # noqa: PLC0415
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table  # noqa: PLC0415  with what is built

    data = BytesIO()
    table = Table([["item", "amount"], ["bolt", "42"]], style=[("GRID", (0, 0), (-1, -1), 1, "black")])
    SimpleDocTemplate(data, invariant=1).build([Paragraph("Invoice 7", getSampleStyleSheet()["Normal"]), table])
    return data.getvalue()


def _logo() -> bytes:
    data = BytesIO()
    Image.new("RGB", (32, 16), "navy").save(data, "PNG")
    return data.getvalue()


def _inbox() -> bytes:
    message = EmailMessage()
    message["From"] = "Ann Lee <ann@acme.example>"
    message["To"] = "Kim Vogel <kim@acme.example>, bob@acme.example"
    message["Date"] = "Mon, 02 Feb 2026 09:00:00 +0000"
    message["Message-ID"] = "<first@acme.example>"
    message["Subject"] = "The invoice"
    message.set_content("Please pay this invoice.\nAnn\n")
    message.add_attachment("42 EUR\n", filename="bill.txt")
    entry = mailbox.mboxMessage(message)
    entry.set_from("ann@acme.example Mon Feb  2 09:00:00 2026")
    return entry.as_bytes(unixfrom=True) + b"\n\n"


def _saved(document: Any) -> bytes:
    data = BytesIO()
    document.save(data)
    return data.getvalue()
