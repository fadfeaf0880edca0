"""The little Markdown that models write documents in: headings, lists, tables, bold and italic."""

import re
from dataclasses import dataclass

_HEADING = re.compile(r"(#{1,6})\s+(.*)")
_BULLET = re.compile(r"(\s*)[-*+]\s+(.*)")
_NUMBERED = re.compile(r"(\s*)(\d{1,9})[.)]\s+(.*)")
_TABLE_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")
_EMPHASIS = re.compile(r"(\*\*.+?\*\*|\*[^*\s][^*]*?\*)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; `level` counts from 1."""

    text: str
    level: int


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; lines that follow each other are one."""

    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list; `depth` counts from 0, and `number` is what stands before it, if it is numbered."""

    text: str
    depth: int
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table; all rows are equally long, and the first one is the header."""

    rows: tuple[tuple[str, ...], ...]


type Block = Heading | Paragraph | Item | Table


@dataclass(frozen=True, slots=True)
class Run:
    """Text of one look."""

    text: str
    is_bold: bool = False
    is_italic: bool = False


def blocks(text: str) -> list[Block]:
    """What a text consists of, in order."""
    found: list[Block] = []
    lines: list[str] = []
    rows: list[tuple[str, ...]] = []
    for line in [*text.splitlines(), ""]:
        if line.lstrip().startswith("|"):
            found += _paragraph(lines)
            if not _TABLE_RULE.fullmatch(line.strip()):
                rows.append(_cells(line))
            continue
        found += _table(rows)
        block = _line_block(line)
        if block is None and line.strip():
            lines.append(line.strip())
            continue
        found += _paragraph(lines)
        if block is not None:
            found.append(block)
    return found


def runs(text: str) -> list[Run]:
    """Text cut where its look changes; emphasis signs are gone."""
    found = []
    for piece in _EMPHASIS.split(text):
        if piece.startswith("**") and piece.endswith("**") and len(piece) > 4:
            found.append(Run(piece[2:-2], is_bold=True))
        elif piece.startswith("*") and piece.endswith("*") and len(piece) > 2:
            found.append(Run(piece[1:-1], is_italic=True))
        elif piece:
            found.append(Run(piece))
    return found


def plain(text: str) -> str:
    """Text without emphasis signs."""
    return "".join(run.text for run in runs(text))


def table_text(rows: list[list[str]]) -> str:
    """Rows as a Markdown table, so that columns stay columns; one row a line, whatever cells hold."""
    width = max((len(row) for row in rows), default=0)
    lines = ["| " + " | ".join(_cell(cell) for cell in [*row, *[""] * (width - len(row))]) + " |" for row in rows]
    if lines:
        lines.insert(1, "|" + " --- |" * width)
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _cells(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner))


def _line_block(line: str) -> Block | None:
    """The block that a line is by itself."""
    if match := _HEADING.fullmatch(line):
        return Heading(match[2].strip(), len(match[1]))
    if match := _BULLET.fullmatch(line):
        return Item(match[2].strip(), len(match[1]) // 2)
    if match := _NUMBERED.fullmatch(line):
        return Item(match[3].strip(), len(match[1]) // 2, int(match[2]))
    return None


def _paragraph(lines: list[str]) -> list[Block]:
    """The paragraph that lines make up, taken out of the list."""
    text = " ".join(lines)
    lines.clear()
    return [Paragraph(text)] if text else []


def _table(rows: list[tuple[str, ...]]) -> list[Block]:
    """The table that rows make up, taken out of the list."""
    width = max((len(row) for row in rows), default=0)
    padded = tuple((*row, *("" for _ in range(width - len(row)))) for row in rows)
    rows.clear()
    return [Table(padded)] if padded else []
