"""Spreadsheet files as tabs of text cells: CSV and XLSX behind one face."""

import csv
import io
import re
import sys
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, override

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.libraries import load
from seatrial_sandbox.office_files import MAX_FILE_BYTES, check_package, replace_file

MAX_CELLS = 2_000_000
"""Most cells of a tab, empty ones included."""
_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?([eE][+-]?\d+)?|[+-]?\.\d+")


_PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?")


@dataclass(slots=True)
class Tab:
    """One tab."""

    name: str
    rows: list[list[str]]
    """Cells as a person sees them, without empty rows and columns at the end; all rows are equally long."""

    @property
    def header(self) -> list[str]:
        """The first row."""
        return self.rows[0] if self.rows else []


class Book(ABC):
    """A spreadsheet file in memory."""

    @property
    @abstractmethod
    def tabs(self) -> list[str]:
        """Names of the tabs in order."""

    @abstractmethod
    def read(self, tab: str) -> Tab:
        """The cells of a tab; formulas by what they come to.

        Raises:
            ToolError: If the tab is too large.
        """

    @abstractmethod
    def formulas(self, tab: str) -> list[tuple[str, str]]:
        """Every cell of a tab that holds a formula: its name, such as `B7`, and the formula."""

    @abstractmethod
    def write(self, tab: str, row: int, column: int, value: str) -> None:
        """Put a value into a cell, counted from 0; the sheet grows as needed."""

    @abstractmethod
    def save(self) -> None:
        """Replace the file; whoever reads meanwhile sees the old one or the new one, never half."""


def open_book(path: Path, shown: str) -> Book:
    """Open a spreadsheet file.

    Args:
        path: The file.
        shown: What the model calls it.

    Raises:
        ToolError: If it is no spreadsheet that can be read.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ToolError(f"{shown!r} has {size} bytes; the largest file these tools open has {MAX_FILE_BYTES}")
    match path.suffix.lower():
        case ".csv" | ".tsv":
            return CsvBook(path, shown)
        case ".xlsx" | ".xlsm":
            return XlsxBook(path, shown)
        case other:
            raise ToolError(f"{shown!r} is not a spreadsheet: these tools read .csv and .xlsx, not {other or 'this'}")


def to_number(text: str) -> Decimal | None:
    """The number that a cell shows, if it shows one; thousands may be set off by commas."""
    text = text.strip()
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def number_text(number: Decimal | float) -> str:
    """A number as a person writes it: `42`, not `42.0`; 15 significant digits, as spreadsheets show."""
    if isinstance(number, float):
        number = Decimal(f"{number:.15g}")
    rounded = number.normalize() if len(number.as_tuple().digits) <= 15 else Decimal(f"{number:.15g}").normalize()
    return f"{rounded:f}"


def number_or_text(text: str) -> float | str | None:
    """What a workbook should store for what a person writes into a cell: a number where it is one."""
    if not _PLAIN_NUMBER.fullmatch(text):
        return text or None
    return float(text) if "." in text else int(text)


def openpyxl() -> ModuleType:
    """The library for workbooks, loaded when first needed."""
    load(["openpyxl"])
    return sys.modules["openpyxl"]


def computed(workbook: bytes) -> bytes:
    """A workbook with the value of every formula stored beside it; unchanged where formulas cannot be computed."""
    import formualizer  # noqa: PLC0415  seldom needed

    try:
        return bytes(formualizer.recalculate_xlsx_bytes(workbook)["bytes"])
    except (OSError, ValueError, RuntimeError):  # a circle, or something that the library does not know
        return workbook


class CsvBook(Book):
    """A file of separated values; its one tab has the file's name."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        data = path.read_bytes()
        self._encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
        try:
            text = data.decode(self._encoding)
        except UnicodeDecodeError:
            raise ToolError(f"{shown!r} is not UTF-8 text") from None
        first_line = text.partition("\n")[0]
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=first_line.count)
        self._newline = "\r\n" if first_line.endswith("\r") else "\n"
        try:
            self._rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter))
        except csv.Error as error:
            raise ToolError(f"{shown!r} is not readable as separated values: {error}") from None

    @property
    @override
    def tabs(self) -> list[str]:
        return [self._path.stem]

    @override
    def read(self, tab: str) -> Tab:
        return Tab(tab, _trimmed(self._rows))

    @override
    def formulas(self, tab: str) -> list[tuple[str, str]]:
        return []

    @override
    def write(self, tab: str, row: int, column: int, value: str) -> None:
        self._rows += [[] for _ in range(row + 1 - len(self._rows))]
        cells = self._rows[row]
        cells += [""] * (column + 1 - len(cells))
        cells[column] = value

    @override
    def save(self) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._delimiter, lineterminator=self._newline).writerows(self._rows)
        replace_file(self._path, text.getvalue().encode(self._encoding))


class XlsxBook(Book):
    """An Excel workbook.

    Formulas are kept. They are shown by the value that was stored with them, or by what they come to where none was;
    a formula that cannot be computed is shown as it is. A saved workbook holds all values, for whatever reads it next.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self._path = path
        self._shown = shown
        check_package(io.BytesIO(path.read_bytes()), shown)
        self._book = self._load(path.read_bytes(), values_only=False)
        self._values: Any = None
        self._is_computed = False

    @property
    @override
    def tabs(self) -> list[str]:
        return [sheet.title for sheet in self._book.worksheets]

    @override
    def read(self, tab: str) -> Tab:
        self._check_size(tab)
        return Tab(tab, _trimmed([[self._cell_text(tab, cell) for cell in row] for row in self._book[tab].iter_rows()]))

    @override
    def formulas(self, tab: str) -> list[tuple[str, str]]:
        self._check_size(tab)
        cells = (cell for row in self._book[tab].iter_rows() for cell in row)
        return [(cell.coordinate, str(cell.value)) for cell in cells if cell.data_type == "f"]

    @override
    def write(self, tab: str, row: int, column: int, value: str) -> None:
        cell = self._book[tab].cell(row + 1, column + 1)
        try:
            cell.value = number_or_text(value)
        except AttributeError:
            raise ToolError(
                f"{cell.coordinate} is inside a merged cell; write to the merged cell's first cell"
            ) from None

    @override
    def save(self) -> None:
        data = io.BytesIO()
        self._book.save(data)
        replace_file(self._path, computed(data.getvalue()))

    def _check_size(self, tab: str) -> None:
        sheet = self._book[tab]
        if sheet.max_row * sheet.max_column > MAX_CELLS:
            raise ToolError(
                f"tab {tab!r} reaches to row {sheet.max_row}, column {sheet.max_column}, too far to read; the last"
                " cells may hold nothing but a format"
            )

    def _load(self, data: bytes, *, values_only: bool) -> Any:
        try:
            return openpyxl().load_workbook(io.BytesIO(data), data_only=values_only)
        except (KeyError, ValueError, TypeError, zipfile.BadZipFile, SyntaxError) as error:  # SyntaxError: bad XML
            raise ToolError(f"{self._shown!r} is damaged or not an .xlsx workbook: {error}") from None

    def _cell_text(self, tab: str, cell: Any) -> str:
        if cell.data_type != "f":
            return _value_text(cell.value)
        if self._values is None:
            self._values = self._load(self._path.read_bytes(), values_only=True)
        if self._values[tab][cell.coordinate].value is None and not self._is_computed:
            self._values = self._load(computed(self._path.read_bytes()), values_only=True)
            self._is_computed = True
        return _value_text(self._values[tab][cell.coordinate].value) or str(cell.value)


def _value_text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return number_text(value)
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case _:
            return str(value)


def _trimmed(rows: list[list[str]]) -> list[list[str]]:
    """The rows made equally long, without what is empty at the end."""
    height = max((i for i, row in enumerate(rows, start=1) if any(row)), default=0)
    width = max((i for row in rows for i, cell in enumerate(row, start=1) if cell), default=0)
    return [(row + [""] * width)[:width] for row in rows[:height]]
