"""One reader per type of document: from its bytes to its parts, in their order, as lazily as its library allows."""

import io
import mailbox
import tempfile
from collections.abc import Iterable, Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any

from seatrial_sandbox.documents.part import Part

type Rows = tuple[tuple[str, ...], ...]

_MAIL_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def text(data: bytes) -> Iterator[Part]:
    """Anything that a person reads in an editor."""
    yield Part("", data.decode("utf-8-sig", errors="replace"))


def docx(data: bytes) -> Iterator[Part]:
    """Paragraphs, and each table as one part, as they follow each other."""
    from docx import Document  # noqa: PLC0415  a tenth of a second
    from docx.table import Table  # noqa: PLC0415

    lines: list[str] = []
    tables = 0
    for block in Document(io.BytesIO(data)).iter_inner_content():
        if not isinstance(block, Table):
            lines.append(block.text)
            continue
        if any(lines):
            yield Part("text", "\n".join(lines).strip())
        lines = []
        tables += 1
        yield Part(f"table {tables}", rows=tuple(tuple(cell.text for cell in row.cells) for row in block.rows))
    if any(lines):
        yield Part("text", "\n".join(lines).strip())


def xlsx(data: bytes) -> Iterator[Part]:
    """Every sheet: values where they were stored, formulas where not."""
    from openpyxl import load_workbook  # noqa: PLC0415  a tenth of a second

    values = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    formulas = load_workbook(io.BytesIO(data), read_only=True)
    for sheet in values.worksheets:
        rows = zip(sheet.iter_rows(values_only=True), formulas[sheet.title].iter_rows(values_only=True), strict=False)
        yield Part(
            sheet.title,
            rows=_rows(
                [shown if shown is not None else said for shown, said in zip(*pair, strict=False)] for pair in rows
            ),
        )


def pptx(data: bytes) -> Iterator[Part]:
    """Every slide: its texts, then its tables, then its notes."""
    from pptx import Presentation  # noqa: PLC0415  a tenth of a second

    for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
        shapes: list[Any] = list(slide.shapes)
        yield Part(f"slide {number}", "\n".join(shape.text_frame.text for shape in shapes if shape.has_text_frame))
        for shape in shapes:
            if shape.has_table:
                rows = tuple(tuple(cell.text for cell in row.cells) for row in shape.table.rows)
                yield Part(f"slide {number}, table", rows=rows)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame:
            yield Part(f"slide {number}, notes", slide.notes_slide.notes_text_frame.text)


def pdf(data: bytes) -> Iterator[Part]:
    """Every page: its text, then its tables with their columns."""
    import pdfplumber  # noqa: PLC0415  a third of a second

    with pdfplumber.open(io.BytesIO(data)) as document:
        for number, page in enumerate(document.pages, start=1):
            yield Part(f"page {number}", page.extract_text() or "")
            for table in page.extract_tables():
                yield Part(f"page {number}, table", rows=_rows(table))
            page.close()


def eml(data: bytes) -> Iterator[Part]:
    """A mail: headers and body, then the names of what is attached."""
    yield from _mail(BytesParser(_class=EmailMessage, policy=policy.default).parsebytes(data), "mail")


def mbox(data: bytes) -> Iterator[Part]:
    """A mailbox: its mails one after the other."""
    with tempfile.NamedTemporaryFile() as copy:
        copy.write(data)
        copy.flush()
        box = mailbox.mbox(copy.name, create=False)
        for number, key in enumerate(box.iterkeys(), start=1):
            message = BytesParser(_class=EmailMessage, policy=policy.default).parsebytes(box.get_bytes(key))
            yield from _mail(message, f"mail {number}")


def _mail(message: EmailMessage, title: str) -> Iterator[Part]:
    headers = "\n".join(f"{name}: {message[name]}" for name in _MAIL_HEADERS if message[name])
    body = message.get_body(("plain", "html"))
    yield Part(title, f"{headers}\n\n{body.get_content() if body else ''}")
    attached = tuple((part.get_filename() or "", part.get_content_type()) for part in message.iter_attachments())
    if attached:
        yield Part(f"{title}, attachments", rows=attached)


def _rows(rows: Iterable[Iterable[object]]) -> Rows:
    """Rows of text, without what is empty at their end."""
    kept = [tuple("" if cell is None else str(cell) for cell in row) for row in rows]
    while kept and not any(kept[-1]):
        kept.pop()
    return tuple(kept)
