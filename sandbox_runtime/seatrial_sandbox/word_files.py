"""Word documents as their elements, each with an id that says where it is.

`p3` is the fourth paragraph, `t0` the first table, `t0.r1.c2` a cell of it. Ids count from 0 and hold until something
is inserted or deleted before them.
"""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.markup import Block, Heading, Item, Paragraph, Table, plain, runs, table_text
from seatrial_sandbox.office_files import read_package, replace_file, understood
from seatrial_sandbox.workspace import Workspace

ENDINGS = (".docx",)
"""What their names end with."""
_CELL = re.compile(r"t(\d+)\.r(\d+)\.c(\d+)")
_BLOCK = re.compile(r"([pt])(\d+)")
_LIST_DEPTHS = 3


def open_document(workspace: Workspace, path: str) -> Any:
    """The document of a file, a `docx.document.Document`.

    Raises:
        ToolError: If there is no such file, or it is no Word document.
    """
    from docx import Document  # noqa: PLC0415  a tenth of a second

    data = read_package(workspace, path, ENDINGS)
    with understood(path, "a Word document"):
        return Document(data)


def save_document(document: Any, file: Path) -> None:
    """Write a document to a file."""
    data = BytesIO()
    document.save(data)
    replace_file(file, data.getvalue())


def is_table(element: Any) -> bool:
    """Whether an element is a table, not a paragraph or a cell."""
    return hasattr(element, "columns")


def elements(document: Any) -> list[tuple[str, Any]]:
    """Every paragraph and table of the body with its id."""
    counts = {"p": 0, "t": 0}
    found = []
    for element in document.iter_inner_content():
        kind = "t" if is_table(element) else "p"
        found.append((f"{kind}{counts[kind]}", element))
        counts[kind] += 1
    return found


def find(document: Any, name: str, *, may_be_cell: bool = False) -> Any:
    """The element with an id.

    Raises:
        ToolError: If there is none, or it is a cell where none may be.
    """
    known = dict(elements(document))
    if cell := _CELL.fullmatch(name):
        if not may_be_cell:
            raise ToolError(f"{name!r} is a cell; name a paragraph or a table, such as 'p0' or 't0'")
        table = known.get(f"t{cell[1]}")
        row, column = int(cell[2]), int(cell[3])
        if table is not None and row < len(table.rows) and column < len(table.rows[row].cells):
            return table.rows[row].cells[column]
    elif not _BLOCK.fullmatch(name):
        raise ToolError(f"{name!r} is no id; ids look like 'p3', 't0' or 't0.r1.c2', and read_doc shows them")
    if name not in known:
        paragraphs = sum(one[0] == "p" for one in known)
        raise ToolError(
            f"there is no {name}; the document has {paragraphs} paragraphs and {len(known) - paragraphs} tables"
            ", counted from 0; read_doc shows their ids"
        )
    return known[name]


def shown(name: str, element: Any) -> str:
    """An element as read_doc shows it."""
    if not is_table(element):
        return f"{name} [{style_name(element)}] {element.text}"
    rows = [[cell.text for cell in row.cells] for row in element.rows]
    return f"{name} [Table, {len(rows)} rows]\n{table_text(rows)}"


def style_name(paragraph: Any) -> str:
    """What the style of a paragraph is called."""
    return paragraph.style.name if paragraph.style is not None else "Normal"


def known_style(document: Any, name: str) -> Any:
    """A style for paragraphs, by its name.

    Raises:
        ToolError: If the document has none of this name.
    """
    from docx.enum.style import WD_STYLE_TYPE  # noqa: PLC0415  with the library

    styles = {style.name: style for style in document.styles if style.type == WD_STYLE_TYPE.PARAGRAPH}
    if name not in styles:
        raise ToolError(f"there is no style {name!r}; the styles are: {', '.join(sorted(styles))}")
    return styles[name]


def append(document: Any, block: Block) -> Any:
    """Put a block at the end of a document."""
    if isinstance(block, Table):
        return _append_table(document, block.rows)
    paragraph = document.add_paragraph(style=_style_of(document, block))
    for run in runs(block.text):
        added = paragraph.add_run(run.text)
        added.bold, added.italic = run.is_bold or None, run.is_italic or None
    return paragraph


def _style_of(document: Any, block: Heading | Item | Paragraph) -> str | None:
    """The style that a block should have, if the document knows it."""
    name = "Normal"
    if isinstance(block, Heading):
        name = f"Heading {block.level}"
    elif isinstance(block, Item):
        name = "List Bullet" if block.number is None else "List Number"
        name += f" {block.depth + 1}" if 0 < block.depth < _LIST_DEPTHS else ""
    return name if name in [style.name for style in document.styles] else None


def _append_table(document: Any, rows: tuple[tuple[str, ...], ...]) -> Any:
    table = document.add_table(rows=len(rows), cols=len(rows[0]))
    if "Table Grid" in [style.name for style in document.styles]:
        table.style = "Table Grid"
    for row, values in zip(table.rows, rows, strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = plain(value)
    return table


def paragraphs_of(document: Any) -> list[Any]:
    """Paragraphs of the body and of its tables, each once."""
    found = []
    for _, element in elements(document):
        if not is_table(element):
            found.append(element)
            continue
        cells = {id(cell._tc): cell for row in element.rows for cell in row.cells}  # noqa: SLF001  merged cells
        found += [paragraph for cell in cells.values() for paragraph in cell.paragraphs]
    return found


def change_text(element: Any, text: str) -> None:
    """New text with the look of the old one's beginning."""
    paragraph = element.paragraphs[0] if hasattr(element, "paragraphs") else element
    if hasattr(element, "paragraphs"):
        for more in element.paragraphs[1:]:
            more._element.getparent().remove(more._element)  # noqa: SLF001  python-docx cannot delete
    if not paragraph.runs:
        paragraph.text = text
        return
    first, *others = paragraph.runs
    first.text = text
    for run in others:
        run._element.getparent().remove(run._element)  # noqa: SLF001  as above


def replace_in(paragraph: Any, old: str, new: str) -> int:
    """Replace within runs, so that looks stay; where the text spans several, the first one takes it all."""
    count = int(paragraph.text.count(old))
    if not count:
        return 0
    if sum(run.text.count(old) for run in paragraph.runs) == count:
        for run in paragraph.runs:
            if old in run.text:
                run.text = run.text.replace(old, new)
    else:
        change_text(paragraph, paragraph.text.replace(old, new))
    return count
