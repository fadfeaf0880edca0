"""The firm's files, written as office programs write them; equal facts make equal bytes."""

import json
import re
import zipfile
from datetime import timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from docx import Document
from icalendar import Calendar, Event
from openpyxl import Workbook
from pptx import Presentation
from pptx.util import Inches

from firm.facts import DOMAIN, FIRM, ME, START, Firm
from firm.requests import Letter, Line, letters, lines

_TIMES = re.compile(rb"(<dcterms:(?:created|modified)[^>]*>)[^<]*")
_ZIP_START = (1980, 1, 1, 0, 0, 0)


def write_world(firm: Firm, root: Path) -> None:
    """Write all of the firm below a folder."""
    for path, data in world_files(firm).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def world_files(firm: Firm) -> dict[str, bytes]:
    """Every file's content by its path."""
    return {
        "README.txt": f"Files of {FIRM}: contracts, finance, reports, slides and more, by folder.\n".encode(),
        "finance/invoices.xlsx": _invoices(firm),
        "finance/budget.xlsx": _budget(firm),
        "finance/sales.xlsx": _sales_plan(),
        **{vendor.file: _contract(firm, vendor.name) for vendor in firm.vendors},
        **{f"reports/{quarter.lower()}.pdf": _report(firm, quarter) for quarter in firm.sales},
        "slides/board.pptx": _board(firm),
        "projects/harbour.docx": _project(),
        **{f"timesheets/{month}.csv": _timesheet(hours) for month, hours in firm.hours.items()},
        "mail/account.json": json.dumps({"name": firm.people[ME].name, "address": firm.people[ME].mail}).encode(),
        "mail/Inbox.mbox": _inbox(letters(firm)),
        "chat/users.json": _json(
            [
                {"id": p.id, "name": p.name, "title": p.team, "email": p.mail, "me": p.id == ME}
                for p in firm.people.values()
            ]
        ),
        "chat/channels.json": _json(
            [{"name": name, "topic": topic, "members": sorted(firm.people)} for name, topic in _CHANNELS.items()]
        ),
        **{f"chat/channels/{name}.jsonl": _channel(name, lines(firm)) for name in _CHANNELS},
        "calendar/work.ics": _calendar(firm),
    }


_CHANNELS = {"general": "Everything", "purchasing": "Vendors and contracts", "board": "Board meeting of April"}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _settled(document: Any) -> bytes:
    data = BytesIO()
    document.save(data)
    return settled(data.getvalue())


def settled(package: bytes) -> bytes:
    """An office file without the time at which it was made."""
    data = BytesIO()
    with zipfile.ZipFile(BytesIO(package)) as old, zipfile.ZipFile(data, "w") as new:
        for name in old.namelist():
            content = _TIMES.sub(rb"\g<1>2026-01-01T00:00:00Z", old.read(name))
            member = zipfile.ZipInfo(name, _ZIP_START)
            member.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(member, content)
    return data.getvalue()


def _invoices(firm: Firm) -> bytes:
    book = Workbook()
    sheet = book.active
    sheet.title = "Invoices"
    sheet.append(["invoice", "vendor", "part", "quantity", "amount", "status"])
    for bill in firm.invoices:
        sheet.append([bill.number, bill.vendor, bill.part, bill.quantity, bill.amount, bill.status])
    totals = book.create_sheet("Totals")
    totals.append(["status", "sum"])
    for row, status in enumerate(("open", "overdue", "paid"), start=2):
        totals.append([status, f"=SUMIFS(Invoices!E:E,Invoices!F:F,A{row})"])
    return _settled(book)


def _budget(firm: Firm) -> bytes:
    book = Workbook()
    sheet = book.active
    sheet.title = "Budget"
    sheet.append(["team", "budget", "spent", "left"])
    for row, (team, (budget, spent)) in enumerate(firm.budgets.items(), start=2):
        sheet.append([team, budget, spent, f"=B{row}-C{row}"])
    last = len(firm.budgets) + 1
    sheet.append(["Total", *(f"=SUM({column}2:{column}{last})" for column in "BCD")])
    return _settled(book)


def _sales_plan() -> bytes:
    """Sales of the quarters, to be filled in."""
    book = Workbook()
    sheet = book.active
    sheet.title = "Sales"
    sheet.append(["quarter", "North", "South", "East", "West", "sum"])
    for row, quarter in enumerate(("Q1", "Q2", "Q3", "Q4"), start=2):
        sheet.append([quarter, 0, 0, 0, 0, f"=SUM(B{row}:E{row})"])
    return _settled(book)


def _contract(firm: Firm, name: str) -> bytes:
    vendor = firm.vendor(name)
    document = Document()
    document.add_heading(f"Supply contract with {vendor.name}", 1)
    document.add_paragraph(f"{FIRM} buys parts from {vendor.name} at the prices of this contract.")
    document.add_heading("Payment", 2)
    document.add_paragraph(f"Bills are paid within {vendor.payment_days} days.")
    document.add_heading("Notice", 2)
    document.add_paragraph(f"Either side may end this contract with {vendor.notice_days} days of notice.")
    document.add_heading("Prices", 2)
    table = document.add_table(rows=1, cols=2)
    for cell, text in zip(table.rows[0].cells, ("part", "price"), strict=True):
        cell.text = text
    for part, price in vendor.prices.items():
        for cell, text in zip(table.add_row().cells, (part, str(price)), strict=True):
            cell.text = text
    return _settled(document)


def _project() -> bytes:
    document = Document()
    document.add_heading("Harbour project", 1)
    for title, text in (
        ("Goal", "Sensors on every crane of the harbour."),
        ("Risks", "Salt water, and the winter."),
        ("Next steps", "A trial with two cranes in May."),
    ):
        document.add_heading(title, 2)
        document.add_paragraph(text)
    return _settled(document)


def _report(firm: Firm, quarter: str) -> bytes:
    from reportlab.lib.styles import getSampleStyleSheet  # noqa: PLC0415  a third of a second
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table  # noqa: PLC0415

    rows = [["region", "sales"], *([region, f"{sales:,}"] for region, sales in firm.sales[quarter].items())]
    data = BytesIO()
    SimpleDocTemplate(data, invariant=1, title=f"Sales of {quarter}").build(
        [
            Paragraph(f"{FIRM}: sales of {quarter}", getSampleStyleSheet()["Heading1"]),
            Table(rows, style=[("GRID", (0, 0), (-1, -1), 0.5, "black")]),
        ]
    )
    return data.getvalue()


def _board(firm: Firm) -> bytes:
    deck = Presentation()
    titles = ("Board meeting", *(f"Budget of {team}" for team in firm.budgets))
    for number, title in enumerate(titles):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        slide.shapes.title.text = title
        if number:
            place = (Inches(1), Inches(2), Inches(6), Inches(1))
            table = slide.shapes.add_table(2, 2, *place).table
            for row, values in enumerate((("left", "note"), ("to be filled in", "-"))):
                for column, value in enumerate(values):
                    table.cell(row, column).text = value
    return _settled(deck)


def _timesheet(hours: dict[str, int]) -> bytes:
    return "".join(
        f"{line}\n" for line in ("person,hours", *(f"{who},{count}" for who, count in hours.items()))
    ).encode()


def _inbox(mails: list[Letter]) -> bytes:
    entries = []
    for number, letter in enumerate(mails):
        date = START - timedelta(days=4) + timedelta(minutes=37 * number)
        message = EmailMessage()
        message["From"], message["To"] = letter.sender, f"{ME}@{DOMAIN}"
        message["Date"] = format_datetime(date)
        message["Message-ID"] = f"<{number}@{letter.sender.rpartition('@')[2]}>"
        message["Subject"] = letter.subject
        message.set_content(letter.text, charset="us-ascii", cte="quoted-printable")
        for name, text in letter.attached.items():
            message.add_attachment(text.encode(), "text", "csv", filename=name, cte="quoted-printable")
        if message.is_multipart():
            message.set_boundary(f"=-letter-{number}")
        entries.append(f"From {letter.sender} {date:%a %b %d %H:%M:%S %Y}\n".encode() + message.as_bytes() + b"\n")
    return b"".join(entries)


def _channel(name: str, said: list[Line]) -> bytes:
    posts = []
    for number, line in enumerate((line for line in said if line.channel == name), start=1):
        time = START - timedelta(days=3) + timedelta(minutes=11 * number)
        post: dict[str, object] = {"id": number, "user": line.user, "time": time.isoformat(), "text": line.text}
        if line.answers:
            post["thread"] = line.answers
        posts.append(json.dumps(post) + "\n")
    return "".join(posts).encode()


def _calendar(firm: Firm) -> bytes:
    book = Calendar()
    book.add("PRODID", f"-//{FIRM}//EN")
    book.add("VERSION", "2.0")
    for meeting in firm.meetings:
        event = Event()
        event.add("UID", meeting.uid)
        event.add("DTSTAMP", START)
        event.add("SUMMARY", meeting.title)
        event.add("DTSTART", meeting.start)
        event.add("DTEND", meeting.end)
        for person in meeting.people:
            event.add("ATTENDEE", f"mailto:{firm.people[person].mail}")
        book.add_component(event)
    return bytes(book.to_ical())
