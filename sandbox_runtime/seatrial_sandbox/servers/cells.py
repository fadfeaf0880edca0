"""Values and names of cells, as models write them."""

import re
from collections.abc import Mapping
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BeforeValidator

from seatrial_sandbox.tables import number_text

_CELL = re.compile(r"([A-Z]{1,3})([1-9]\d{0,6})")
MAX_ROWS, MAX_COLUMNS = 1_048_576, 16_384
"""What a sheet can hold."""


def _as_text(value: object) -> object:
    """Models write numbers where text is asked for; that is no mistake worth a turn."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return number_text(value)
        case _:
            return value


Text = Annotated[str, BeforeValidator(_as_text)]
"""What a cell shows."""


def cell_position(name: str) -> tuple[int, int]:
    """Row and column of a cell's name, from 0.

    Raises:
        ToolError: If it is none.
    """
    match = _CELL.fullmatch(name.strip().upper().replace("$", ""))
    row, column = (int(match[2]), column_number(match[1])) if match else (0, 0)
    if not match or row > MAX_ROWS or column > MAX_COLUMNS:
        raise ToolError(f"{name!r} is no cell; write a column and a row, such as 'B2'")
    return row - 1, column - 1


def column_number(letters: str | None) -> int:
    """Number of a column, from 1; 0 for none."""
    number = 0
    for letter in letters or "":
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def is_binary(arguments: Mapping[str, object]) -> bool:
    """Whether a call is about a workbook, which only a library can read; separated values are plain text."""
    return not str(arguments.get("path", "")).lower().endswith((".csv", ".tsv"))
