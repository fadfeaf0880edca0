"""The smallest workbook that spreadsheet programs open, the same bytes every time."""

import io
import zipfile
from collections.abc import Sequence
from xml.sax.saxutils import escape

_EPOCH = (2026, 1, 1, 0, 0, 0)
"""Zip members need a date; the clock's would make every run differ."""
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"

_FIXED_PARTS = {
    "[Content_Types].xml": (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>'
    ),
    "_rels/.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
    ),
    "xl/workbook.xml": (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">'
        '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>'
    ),
    "xl/_rels/workbook.xml.rels": (
        f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'
    ),
}


def xlsx_bytes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """A workbook with one tab; cells of digits become numbers, all others text."""
    table = "".join(_row(number, cells) for number, cells in enumerate([header, *rows], start=1))
    parts = {
        **_FIXED_PARTS,
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_MAIN}"><sheetData>{table}</sheetData></worksheet>',
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, xml in parts.items():
            member = zipfile.ZipInfo(name, _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n' + xml)
    return buffer.getvalue()


def _row(number: int, cells: Sequence[str]) -> str:
    return (
        f'<row r="{number}">'
        + "".join(_cell(f"{chr(65 + i)}{number}", text) for i, text in enumerate(cells))
        + "</row>"
    )


def _cell(reference: str, text: str) -> str:
    if text.isdigit():
        return f'<c r="{reference}"><v>{text}</v></c>'
    return f'<c r="{reference}" t="inlineStr"><is><t>{escape(text)}</t></is></c>'
