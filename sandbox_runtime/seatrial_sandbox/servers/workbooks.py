"""MCP server `workbooks`: make spreadsheets, and write blocks of cells, formulas, tabs and charts.

Apart from `sheets`, which finds cells by their row and column: a world offers what its tasks need, and no more.
"""

import csv
import io
import re
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.office_files import new_file, read_package, replace_file, understood
from seatrial_sandbox.servers.cells import Text, cell_position, is_binary
from seatrial_sandbox.tables import computed, number_or_text, open_book, openpyxl
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_WORKBOOK = (".xlsx",)
_SHEETS = (".xlsx", ".csv")
_TAB_NAME = re.compile(r"[^\[\]:*?/\\]{1,31}")

_File = Annotated[str, Field(description="XLSX workbook, relative to the workspace.")]
_TabName = Annotated[str, Field(description="Name of the tab.")]
_Rows = Annotated[
    list[list[Text]],
    Field(description="Rows of values; what begins with '=' is a formula.", min_length=1, max_length=100_000),
]
_Kind = Annotated[Literal["bar", "column", "line", "pie"], Field(description="Kind of chart.")]


class WorkbookTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def create_spreadsheet(
        self,
        path: Annotated[str, Field(description="XLSX or CSV file to write, relative to the workspace.")],
        rows: _Rows,
        tab: _TabName = "Sheet1",
    ) -> str:
        """Write a new spreadsheet with one tab, or replace one."""
        file = new_file(self._workspace, path, _SHEETS)
        if file.suffix.lower() == ".csv":
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            replace_file(file, text.getvalue().encode(errors="replace"))
            return f"wrote {path} with {len(rows)} rows"
        book = openpyxl().Workbook()
        book.active.title = _checked(tab)
        _fill(book.active, 0, 0, rows)
        _save(book, file)
        return f"wrote {path} with {len(rows)} rows in tab {tab}"

    def write_cells(
        self,
        path: Annotated[str, Field(description="CSV or XLSX file, relative to the workspace.")],
        cell: Annotated[str, Field(description="Upper left cell, such as 'B2'.")],
        rows: _Rows,
        tab: Annotated[str | None, Field(description="Tab; the first one if left out.")] = None,
    ) -> str:
        """Write a block of values and formulas; formulas are computed at once."""
        book = open_book(self._workspace.file(path), path)
        if tab is not None and tab not in book.tabs:
            raise ToolError(f"there is no tab {tab!r}; the tabs are: {', '.join(book.tabs)}")
        top, left = cell_position(cell)
        for row, values in enumerate(rows):
            for column, value in enumerate(values):
                book.write(tab or book.tabs[0], top + row, left + column, value)
        book.save()
        return f"wrote {len(rows)} rows from {cell} on"

    def read_formulas(
        self, path: _File, tab: Annotated[str | None, Field(description="Tab; all if left out.")] = None
    ) -> str:
        """List the cells that hold formulas, with their formulas."""
        book = open_book(self._workspace.file(path), path)
        if tab is not None and tab not in book.tabs:
            raise ToolError(f"there is no tab {tab!r}; the tabs are: {', '.join(book.tabs)}")
        names = [tab] if tab is not None else book.tabs
        found = [f"{name}!{cell} {formula}" for name in names for cell, formula in book.formulas(name)]
        return "\n".join(found) or "no cell holds a formula"

    def add_tab(self, path: _File, tab: _TabName) -> str:
        """Add an empty tab at the end of a workbook."""
        book = self._open(path)
        if tab in book.sheetnames:
            raise ToolError(f"there is a tab {tab!r} already")
        book.create_sheet(_checked(tab))
        _save(book, self._workspace.file(path))
        return f"added tab {tab}; write_cells fills it"

    def delete_tab(self, path: _File, tab: _TabName) -> str:
        """Take a tab out of a workbook, with all that it holds."""
        book = self._open(path)
        if tab not in book.sheetnames:
            raise ToolError(f"there is no tab {tab!r}; the tabs are: {', '.join(book.sheetnames)}")
        if len(book.sheetnames) == 1:
            raise ToolError(f"{tab!r} is the only tab, and a workbook must have one")
        del book[tab]
        _save(book, self._workspace.file(path))
        return f"deleted tab {tab}; left are: {', '.join(book.sheetnames)}"

    def create_chart(
        self,
        path: _File,
        tab: _TabName,
        range: Annotated[str, Field(description="Cells with headers: names in the first column, such as 'A1:C5'.")],  # noqa: A002  the word spreadsheets use
        kind: _Kind,
        title: Annotated[str, Field(description="Title of the chart.", max_length=250)] = "",
        at: Annotated[str, Field(description="Cell of its upper left corner.")] = "H2",
    ) -> str:
        """Put a chart over cells of a tab."""
        from openpyxl.chart import Reference  # noqa: PLC0415  with the library

        book = self._open(path)
        if tab not in book.sheetnames:
            raise ToolError(f"there is no tab {tab!r}; the tabs are: {', '.join(book.sheetnames)}")
        first, colon, last = range.partition(":")
        if not colon:
            raise ToolError(f"range is {range!r}; write the first and the last cell, such as 'A1:C5'")
        (top, left), (bottom, right), _ = cell_position(first), cell_position(last), cell_position(at)
        if bottom <= top or right <= left:
            raise ToolError(f"{range!r} needs a header row, a column of names and one column of numbers at least")
        sheet = book[tab]
        chart = _chart(kind)
        chart.title = title or None
        values = Reference(sheet, min_col=left + 2, max_col=right + 1, min_row=top + 1, max_row=bottom + 1)
        names = Reference(sheet, min_col=left + 1, min_row=top + 2, max_row=bottom + 1)
        chart.add_data(values, titles_from_data=True)
        chart.set_categories(names)
        sheet.add_chart(chart, at.upper())
        _save(book, self._workspace.file(path))
        return f"put a {kind} chart at {at} of tab {tab}"

    def _open(self, path: str) -> Any:
        data = read_package(self._workspace, path, _WORKBOOK)
        with understood(path, "an Excel workbook"):
            return openpyxl().load_workbook(data)


def build(workspace: Workspace) -> ToolServer:
    """The server `workbooks` over a workspace."""
    server = ToolServer(
        "workbooks", "Makes spreadsheets, and writes cells, formulas and charts.", libraries=("openpyxl", "formualizer")
    )
    tools = WorkbookTools(workspace)
    for tool in (
        tools.create_spreadsheet,
        tools.write_cells,
        tools.read_formulas,
        tools.add_tab,
        tools.delete_tab,
        tools.create_chart,
    ):
        server.expose(tool, is_apart=is_binary)
    return server


def _chart(kind: str) -> Any:
    from openpyxl.chart import BarChart, LineChart, PieChart  # noqa: PLC0415  with the library

    match kind:
        case "line":
            return LineChart()
        case "pie":
            return PieChart()
        case _:
            chart = BarChart()
            chart.type = "bar" if kind == "bar" else "col"
            return chart


def _checked(tab: str) -> str:
    """The name of a new tab.

    Raises:
        ToolError: If no program would take it.
    """
    if not _TAB_NAME.fullmatch(tab):
        raise ToolError(f"{tab!r} is no name for a tab: 1 to 31 characters, none of []:*?/\\")
    return tab


def _fill(sheet: Any, top: int, left: int, rows: list[list[str]]) -> None:
    for row, values in enumerate(rows, start=top + 1):
        for column, value in enumerate(values, start=left + 1):
            sheet.cell(row, column).value = number_or_text(value)


def _save(book: Any, file: Any) -> None:
    data = io.BytesIO()
    book.save(data)
    replace_file(file, computed(data.getvalue()))
