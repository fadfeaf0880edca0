"""MCP server `sheets`: read, query and edit CSV and XLSX files by the names of their rows and columns.

Formulas are computed, by a library and without an office program.
"""

import csv
import io
import re
from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.servers.cells import Text, column_number, is_binary
from seatrial_sandbox.tables import Book, Tab, number_text, open_book, to_number
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_RANGE = re.compile(r"([A-Z]{0,3})(\d{0,7})(?::([A-Z]{0,3})(\d{0,7}))?")


_File = Annotated[str, Field(description="CSV or XLSX file, relative to the workspace.")]
_Row = Annotated[Text, Field(description="What the first column holds in the row.")]
_Column = Annotated[Text, Field(description="Header of the column.")]
_TabName = Annotated[str | None, Field(description="Tab; the first one if left out.")]
_Range = Annotated[str | None, Field(description="Cells such as 'A1:C20', 'B:D' or '5:9'; all if left out.")]
_Function = Literal["sum", "mean", "min", "max", "count"]
_Computed = Annotated[_Function, Field(description="What to compute.")]


class SheetsTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def list_tabs(self, path: _File) -> str:
        """List the tabs of a spreadsheet with their sizes, one a line."""
        book = self._open(path)
        tabs = [book.read(name) for name in book.tabs]
        return "\n".join(f"{tab.name}: {len(tab.rows)} rows, {len(tab.header)} columns" for tab in tabs)

    def read_tab(
        self,
        path: _File,
        tab: _TabName = None,
        range: _Range = None,  # noqa: A002  the word spreadsheets use
    ) -> str:
        """Read a tab as comma-separated text; row 1 is the header."""
        sheet = self._tab(self._open(path), tab)
        rows = _select(sheet, range) if range else sheet.rows
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue().rstrip("\n")

    def lookup(self, path: _File, row: _Row, column: _Column, tab: _TabName = None) -> str:
        """Return one cell: the row is found by its first column, the column by its header."""
        sheet = self._tab(self._open(path), tab)
        return sheet.rows[_find_row(sheet, row)][_find_column(sheet, column)]

    def aggregate(self, path: _File, column: _Column, function: _Computed, tab: _TabName = None) -> str:
        """Compute sum, mean, min, max or count over a column; empty cells are left out."""
        sheet = self._tab(self._open(path), tab)
        index = _find_column(sheet, column)
        cells = [(number, row[index]) for number, row in enumerate(sheet.rows[1:], start=2) if row[index].strip()]
        if function == "count":
            return str(len(cells))
        numbers = []
        for row_number, cell in cells:
            number = to_number(cell)
            if number is None:
                raise ToolError(f"row {row_number} of column {column!r} holds {cell!r}, which is not a number")
            numbers.append(number)
        if not numbers:
            raise ToolError(f"column {column!r} holds no numbers")
        return number_text(_aggregate(function, numbers))

    def edit_cell(
        self,
        path: _File,
        row: _Row,
        column: _Column,
        value: Annotated[Text, Field(description="New content of the cell.")],
        tab: _TabName = None,
    ) -> str:
        """Change one cell: the row is found by its first column, the column by its header."""
        book = self._open(path)
        sheet = self._tab(book, tab)
        row_index, column_index = _find_row(sheet, row), _find_column(sheet, column)
        before = sheet.rows[row_index][column_index]
        book.write(sheet.name, row_index, column_index, value)
        book.save()
        return f"{row} / {column}: {before or '(empty)'} -> {value or '(empty)'}"

    def append_row(
        self,
        path: _File,
        values: Annotated[list[Text], Field(description="One value per column, in the order of the header.")],
        tab: _TabName = None,
    ) -> str:
        """Add a row at the end of a tab."""
        book = self._open(path)
        sheet = self._tab(book, tab)
        if sheet.header and len(values) != len(sheet.header):
            raise ToolError(f"{len(values)} values for {len(sheet.header)} columns; give: {', '.join(sheet.header)}")
        for column, value in enumerate(values):
            book.write(sheet.name, len(sheet.rows), column, value)
        book.save()
        return f"added row {len(sheet.rows) + 1}"

    def _open(self, path: str) -> Book:
        return open_book(self._workspace.file(path), path)

    @staticmethod
    def _tab(book: Book, name: str | None) -> Tab:
        if not book.tabs:
            raise ToolError("the workbook has no tab with cells")
        if name is not None and name not in book.tabs:
            raise ToolError(f"there is no tab {name!r}; the tabs are: {', '.join(book.tabs)}")
        return book.read(name or book.tabs[0])


def build(workspace: Workspace) -> ToolServer:
    """The server `sheets` over a workspace."""
    server = ToolServer("sheets", "Reads, queries and edits CSV and XLSX files.", libraries=("openpyxl", "formualizer"))
    tools = SheetsTools(workspace)
    server.expose(tools.list_tabs, is_apart=is_binary)
    server.expose(tools.read_tab, advice="ask for a range, such as 'A1:F100'", is_apart=is_binary)
    server.expose(tools.lookup, is_apart=is_binary)
    server.expose(tools.aggregate, is_apart=is_binary)
    server.expose(tools.edit_cell, is_apart=is_binary)
    server.expose(tools.append_row, is_apart=is_binary)
    return server


def _find_row(sheet: Tab, key: str) -> int:
    """Index of the one row whose first cell is `key`; upper and lower case count only if they have to."""
    names = [row[0].strip() for row in sheet.rows]
    wanted = key.strip()
    matches = [i for i, name in enumerate(names) if i and name == wanted]
    matches = matches or [i for i, name in enumerate(names) if i and name.casefold() == wanted.casefold()]
    if len(matches) > 1:
        numbers = ", ".join(str(i + 1) for i in matches[:10])
        raise ToolError(f"{len(matches)} rows begin with {key!r} (rows {numbers}); read_tab shows them")
    if not matches:
        raise ToolError(f"no row begins with {key!r}{_hint(wanted, names[1:])}")
    return matches[0]


def _find_column(sheet: Tab, header: str) -> int:
    wanted = header.strip()
    names = [name.strip() for name in sheet.header]
    matches = [i for i, name in enumerate(names) if name == wanted]
    matches = matches or [i for i, name in enumerate(names) if name.casefold() == wanted.casefold()]
    if len(matches) > 1:
        raise ToolError(f"{len(matches)} columns have the header {header!r}; use read_tab with a range")
    if not matches:
        raise ToolError(f"there is no column {header!r}; the columns are: {', '.join(names) or 'none'}")
    return matches[0]


def _hint(wanted: str, names: Sequence[str]) -> str:
    close = get_close_matches(wanted, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; the first column holds: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"


def _select(sheet: Tab, cells: str) -> list[list[str]]:
    match = _RANGE.fullmatch(cells.strip().upper().replace("$", ""))
    if not match or not any(match.groups()):
        raise ToolError(f"range is {cells!r}; write cells such as 'A1:C20', columns 'B:D' or rows '5:9'")
    left, top, right, bottom = match.groups()
    if right is None and bottom is None:
        right, bottom = left, top
    first_row, last_row = int(top or 1), int(bottom or len(sheet.rows))
    first_column, last_column = column_number(left) or 1, column_number(right) or len(sheet.header)
    chosen = [row[first_column - 1 : last_column] for row in sheet.rows[max(first_row - 1, 0) : last_row]]
    if not any(chosen):
        raise ToolError(f"{cells!r} is empty: the tab has {len(sheet.rows)} rows and {len(sheet.header)} columns")
    return chosen


def _aggregate(function: _Function, numbers: list[Decimal]) -> Decimal:
    match function:
        case "sum" | "count":
            return sum(numbers, Decimal(0))
        case "mean":
            return sum(numbers, Decimal(0)) / len(numbers)
        case "min":
            return min(numbers)
        case "max":
            return max(numbers)
