from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from mcp.server.mcpserver.exceptions import ToolError
from openpyxl import Workbook, load_workbook

from seatrial_sandbox.tables import number_text, open_book, to_number


def workbook(path: Path, rows: list[list[object]]) -> Path:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    for row in rows:
        sheet.append(row)
    book.save(path)
    return path


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (42.0, "42"),
        (0.1 + 0.2, "0.3"),
        (1e21, "1000000000000000000000"),
        (-0.5, "-0.5"),
        (100.0, "100"),
        (1e-7, "0.0000001"),
    ],
)
def test_a_number_is_written_as_a_person_writes_it(number: float, text: str) -> None:
    assert number_text(number) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        (" 1,234.50 ", 1234.5),
        ("-3", -3),
        ("1e3", 1000),
        (".5", 0.5),
        ("12,34", None),
        ("n/a", None),
        ("", None),
        ("nan", None),
    ],
)
def test_a_cell_is_a_number_only_if_it_looks_like_one(text: str, number: float | None) -> None:
    found = to_number(text)
    assert found == number if number is None else found is not None and float(found) == number


def test_excel_cells_read_as_a_person_sees_them(tmp_path: Path) -> None:
    moment = datetime(2024, 5, 1, 9, 30, tzinfo=UTC).replace(tzinfo=None)
    path = workbook(tmp_path / "a.xlsx", [["n", "f", "b", "d", "t"], [42, 42.0, True, date(2024, 5, 1), moment]])
    assert open_book(path, "a").read("Sheet").rows[1] == ["42", "42", "TRUE", "2024-05-01", "2024-05-01 09:30:00"]


def test_a_formula_survives_an_edit_beside_it_and_is_computed_anew(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", [["x", "y"], [1, "=A2*2"]])
    book = open_book(path, "a")
    book.write("Sheet", 1, 0, "5")
    book.save()
    sheet = load_workbook(path)["Sheet"]
    assert (sheet["A2"].value, sheet["B2"].value) == (5, "=A2*2")
    assert open_book(path, "a").read("Sheet").rows[1] == ["5", "10"]
    assert load_workbook(path, data_only=True)["Sheet"]["B2"].value == 10


@pytest.mark.parametrize(
    "content",
    ["a;b\r\n1;2\r\n", 'a,b\n"x, y",2\n', "\ufeffa,b\n1,2\n"],
    ids=["semicolons and CRLF", "quotes", "byte order mark"],
)
def test_a_csv_file_keeps_its_dialect(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    book = open_book(path, "a")
    book.write("a", 1, 1, "2")
    book.save()
    assert path.read_bytes() == content.encode()


def test_ragged_rows_are_made_equal_and_empty_ends_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,\n1\n,,\n")
    assert open_book(path, "a").read("a").rows == [["a", "b"], ["1", ""]]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.xlsx", b"not a zip"), ("a.csv", b"\xff\xfe\x00"), ("a.pdf", b"x"), ("a.xls", b"x")],
)
def test_what_is_no_spreadsheet_is_refused_with_a_reason(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ToolError, match=name):
        open_book(path, name)
