import io
import os
import zipfile
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import docx
import openpyxl
import pptx
import pytest

from seatrial_sandbox.documents.extract import Extract, extract, media_type
from seatrial_sandbox.documents.extractor import Extractor

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # the libraries' own


def word() -> bytes:
    document = docx.Document()
    document.add_paragraph("Before")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    document.add_paragraph("After")
    return saved(document)


def workbook() -> bytes:
    book = openpyxl.Workbook()
    book.active.title = "Costs"
    book.active.append(["item", "eur"])
    book.active.append(["tea", 3])
    book.active["B3"] = "=B2*2"
    book.create_sheet("Empty")
    return saved(book)


def slides() -> bytes:
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Plan"
    table = slide.shapes.add_table(1, 2, 0, 0, 100, 100).table
    table.cell(0, 0).text, table.cell(0, 1).text = "x", "y"
    slide.notes_slide.notes_text_frame.text = "say it"
    return saved(deck)


def page() -> bytes:
    """A page with a line of text and a ruled table, written by hand."""
    drawn = ["BT /F 12 Tf 72 800 Td (Invoice 7) Tj ET"]
    for row, cells in enumerate([("item", "eur"), ("tea", "3")]):
        for column, cell in enumerate(cells):
            x, y = 72 + 100 * column, 700 - 20 * row
            drawn.append(f"{x} {y} 100 20 re S BT /F 12 Tf {x + 4} {y + 6} Td ({cell}) Tj ET")
    content = "\n".join(drawn)
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = "%PDF-1.4\n", []
    for number, text in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{text}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF"
    return f"{out}xref\n0 6\n0000000000 65535 f \n{table}{trailer}".encode()


def mail() -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@x.org", "b@x.org", "Hello"
    message.set_content("The body.\n")
    message.add_attachment(b"1,2", maintype="text", subtype="csv", filename="n.csv")
    return message.as_bytes()


def saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]  # every office library's
    return out.getvalue()


def said(found: Extract) -> list[tuple[str, str, list[tuple[str, ...]]]]:
    assert not found.error
    return [(part.title, part.text.strip(), list(part.rows)) for part in found.parts]


def test_a_text_document_keeps_the_order_of_text_and_tables() -> None:
    assert said(extract("a.docx", word(), 1000)) == [
        ("text", "Before", []),
        ("table 1", "", [("a", "b")]),
        ("text", "After", []),
    ]


def test_a_workbook_gives_every_sheet_its_cells_and_formulas_that_have_no_value() -> None:
    assert said(extract("a.xlsx", workbook(), 1000)) == [
        ("Costs", "", [("item", "eur"), ("tea", "3"), ("", "=B2*2")]),
        ("Empty", "", []),
    ]


def test_a_deck_gives_texts_tables_and_notes() -> None:
    assert said(extract("a.pptx", slides(), 1000)) == [
        ("slide 1", "Plan", []),
        ("slide 1, table", "", [("x", "y")]),
        ("slide 1, notes", "say it", []),
    ]


def test_a_pdf_keeps_the_columns_of_its_tables() -> None:
    (title, text, _), table = said(extract("a.pdf", page(), 1000))
    assert title == "page 1"
    assert "Invoice 7" in text
    assert table == ("page 1, table", "", [("item", "eur"), ("tea", "3")])


def test_a_mail_gives_headers_body_and_names_of_attachments() -> None:
    (_, text, _), attachments = said(extract("a.eml", mail(), 1000))
    assert text == "From: a@x.org\nTo: b@x.org\nSubject: Hello\n\nThe body."
    assert attachments == ("mail, attachments", "", [("n.csv", "text/csv")])


def test_a_mailbox_gives_every_mail() -> None:
    box = b"".join(b"From x Mon Jan 1 00:00:00 2024\n" + mail() + b"\n" for _ in range(2))
    assert [part.title for part in extract("a.mbox", box, 5000).parts if part.text] == ["mail 1", "mail 2"]


def test_text_is_cut_at_its_budget_and_says_so() -> None:
    found = extract("a.txt", "é".encode() * 100, 11)
    assert (found.parts[0].text, found.truncated) == ("é" * 5, True)
    rows = extract("a.xlsx", workbook(), 12)
    assert (rows.parts[0].rows, rows.truncated) == ((("item", "eur"),), True)


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx", "a.pptx", "a.pdf"])
def test_a_document_that_is_none_is_an_error_not_a_crash(name: str) -> None:
    found = extract(name, b"\x00nonsense", 100)
    assert found.error
    assert not found.parts


def test_a_packed_bomb_is_refused_before_it_is_unpacked() -> None:
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        packed.open("x", "w", force_zip64=True) as member,
    ):
        for _ in range(300):
            member.write(bytes(1 << 20))
    assert "unpacks to" in extract("a.xlsx", out.getvalue(), 100).error


def test_only_known_endings_are_documents() -> None:
    assert [media_type(name) for name in ("a.exe", "noending", "A.TXT")] == ["", "", "text/plain"]


@pytest.fixture
def extractor() -> Iterator[Extractor]:
    with Extractor(seconds=20.0) as reader:
        yield reader


def test_another_process_reads_and_one_that_breaks_over_a_document_is_replaced(
    extractor: Extractor, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("hello")
    document = os.open(tmp_path / "a.txt", os.O_RDONLY)
    try:
        assert extractor.extract("a.txt", document, 100).parts[0].text == "hello"
        assert extractor._worker is not None
        extractor._worker.kill()
        extractor._worker.wait()
        assert "ended the reader" in extractor.extract("a.txt", document, 100).error
        os.lseek(document, 0, os.SEEK_SET)
        assert extractor.extract("a.txt", document, 100).parts[0].text == "hello"
    finally:
        os.close(document)
