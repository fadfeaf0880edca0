"""MCP server `docs`: read, write and edit Word documents element by element.

An element's id says where it is: `p3` is the fourth paragraph, `t0` the first table, `t0.r1.c2` a cell of it. Ids count
from 0 and hold until something is inserted or deleted before them.
"""

import re
from io import BytesIO
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.markup import Block, Heading, Item, Paragraph, Table, blocks, plain, runs, table_text
from seatrial_sandbox.office_files import new_file, read_package, replace_file, understood
from seatrial_sandbox.pictures import read_picture
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_ENDINGS = (".docx",)
_CELL = re.compile(r"t(\d+)\.r(\d+)\.c(\d+)")
_BLOCK = re.compile(r"([pt])(\d+)")
_POINTS_PER_CM = 72 / 2.54
_LIST_DEPTHS = 3

_File = Annotated[str, Field(description="Word document (.docx), relative to the workspace.")]
_Element = Annotated[str, Field(description="Id of an element as read_doc shows it, such as 'p3', 't0' or 't0.r1.c2'.")]
_Markdown = Annotated[str, Field(description="Markdown: headings, paragraphs, lists, tables, **bold**, *italic*.")]
_Where = Annotated[Literal["before", "after"], Field(description="On which side of the element.")]
_On = Annotated[bool | None, Field(description="On or off; as it is if left out.")]
_Place = Annotated[Literal["header", "footer"], Field(description="Which of the two.")]


class DocsTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def read_doc(
        self,
        path: _File,
        first: Annotated[int, Field(description="First element to read, from 0.", ge=0)] = 0,
        count: Annotated[int, Field(description="How many elements to read.", ge=1)] = 400,
    ) -> str:
        """Read a document: every paragraph and table with its id and style."""
        document = self._open(path)
        shown = [_shown(name, element) for name, element in _elements(document)]
        if first and first >= len(shown):
            raise ToolError(f"{path!r} has {len(shown)} elements; first is {first}")
        more = len(shown) - first - count
        return "\n".join([*shown[first : first + count], *([f"[{more} more elements]"] if more > 0 else [])])

    def outline(self, path: _File) -> str:
        """List the headings of a document with their ids, indented by level."""
        lines = []
        for name, element in _elements(self._open(path)):
            match = re.fullmatch(r"Heading (\d)", _style(element)) if name[0] == "p" else None
            if match:
                lines.append(f"{'  ' * (int(match[1]) - 1)}{name} {element.text}")
        return "\n".join(lines) or "the document has no headings"

    def search_doc(
        self, path: _File, query: Annotated[str, Field(description="Text to find; case does not matter.", min_length=1)]
    ) -> str:
        """Find the paragraphs and cells that hold a text."""
        found = []
        for name, element in _elements(self._open(path)):
            if name[0] == "p":
                found += [f"{name} {element.text}"] * (query.lower() in element.text.lower())
                continue
            for row, cells in enumerate(element.rows):
                found += [
                    f"{name}.r{row}.c{column} {cell.text}"
                    for column, cell in enumerate(cells.cells)
                    if query.lower() in cell.text.lower()
                ]
        return "\n".join(found) or f"nothing matches {query!r}"

    def create_doc(self, path: _File, markdown: _Markdown) -> str:
        """Write a new document, or replace one."""
        from docx import Document  # noqa: PLC0415  a tenth of a second

        file = new_file(self._workspace, path, _ENDINGS)
        document = Document()
        content = blocks(markdown)
        for block in content:
            _append(document, block)
        _save(document, file)
        return f"wrote {path} with {len(content)} elements"

    def insert_content(self, path: _File, element: _Element, markdown: _Markdown, where: _Where = "after") -> str:
        """Put new content beside an element."""
        document = self._open(path)
        content = blocks(markdown)
        if not content:
            raise ToolError("markdown is empty; write what is to be inserted")
        anchor = _find(document, element)._element  # noqa: SLF001  python-docx has no other way to move
        made = [_append(document, block)._element for block in content]  # noqa: SLF001
        for piece in made if where == "before" else reversed(made):
            (anchor.addprevious if where == "before" else anchor.addnext)(piece)
        _save(document, self._workspace.file(path))
        return f"inserted {len(made)} elements {where} {element}"

    def append_content(self, path: _File, markdown: _Markdown) -> str:
        """Put new content at the end of a document."""
        document = self._open(path)
        content = blocks(markdown)
        for block in content:
            _append(document, block)
        _save(document, self._workspace.file(path))
        return f"added {len(content)} elements"

    def set_text(
        self, path: _File, element: _Element, text: Annotated[str, Field(description="The whole new text.")]
    ) -> str:
        """Change the text of a paragraph or a table's cell; its style stays."""
        document = self._open(path)
        found = _find(document, element, may_be_cell=True)
        if _is_table(found):
            raise ToolError(f"{element} is a table; name a cell of it, such as '{element}.r0.c0'")
        before = found.text
        _set_text(found, text)
        _save(document, self._workspace.file(path))
        return f"{element}: {before or '(empty)'} -> {text or '(empty)'}"

    def replace_text(
        self,
        path: _File,
        old: Annotated[str, Field(description="Text to find, exactly as it is written.", min_length=1)],
        new: Annotated[str, Field(description="What to put in its place.")],
    ) -> str:
        """Replace a text wherever it stands, in paragraphs and tables; how it looks stays where it can."""
        document = self._open(path)
        count = sum(_replace(paragraph, old, new) for paragraph in _paragraphs(document))
        if not count:
            raise ToolError(f"{old!r} is not in {path!r}; search_doc finds text whatever its case")
        _save(document, self._workspace.file(path))
        return f"replaced {count} times"

    def delete_element(self, path: _File, element: _Element) -> str:
        """Take a paragraph or table out; ids after it move up."""
        document = self._open(path)
        found = _find(document, element)._element  # noqa: SLF001  python-docx cannot delete
        found.getparent().remove(found)
        _save(document, self._workspace.file(path))
        return f"deleted {element}"

    def add_table_row(
        self,
        path: _File,
        element: _Element,
        values: Annotated[list[str], Field(description="One text per column.")],
    ) -> str:
        """Add a row at the end of a table."""
        document = self._open(path)
        table = _find(document, element)
        if not _is_table(table):
            raise ToolError(f"{element} is a paragraph; read_doc shows which elements are tables")
        if len(values) != len(table.columns):
            raise ToolError(f"{len(values)} values for {len(table.columns)} columns")
        for cell, value in zip(table.add_row().cells, values, strict=True):
            cell.text = value
        _save(document, self._workspace.file(path))
        return f"added {element}.r{len(table.rows) - 1}"

    def format_text(
        self,
        path: _File,
        element: _Element,
        style: Annotated[
            str | None, Field(description="Name of a style, such as 'Heading 1' or 'List Bullet'.")
        ] = None,
        bold: _On = None,
        italic: _On = None,
        size_points: Annotated[float | None, Field(description="Size of the letters.", ge=4, le=200)] = None,
    ) -> str:
        """Change how a paragraph, or a cell's text, looks."""
        from docx.shared import Pt  # noqa: PLC0415  with the library

        document = self._open(path)
        found = _find(document, element, may_be_cell=True)
        if _is_table(found):
            raise ToolError(f"{element} is a table; name a cell of it, such as '{element}.r0.c0'")
        paragraphs = found.paragraphs if hasattr(found, "paragraphs") else [found]
        for paragraph in paragraphs:
            if style is not None:
                paragraph.style = _known_style(document, style)
            for run in paragraph.runs:
                run.bold = run.bold if bold is None else bold
                run.italic = run.italic if italic is None else italic
                if size_points is not None:
                    run.font.size = Pt(size_points)
        _save(document, self._workspace.file(path))
        return f"changed the look of {element}"

    def read_comments(self, path: _File) -> str:
        """List the comments of a document."""
        comments = self._open(path).comments
        return "\n".join(f"{note.comment_id} {note.author}: {note.text}" for note in comments) or "no comments"

    def add_comment(
        self,
        path: _File,
        element: _Element,
        text: Annotated[str, Field(description="What to say about the paragraph.", min_length=1, max_length=5000)],
        author: Annotated[str, Field(description="Who says it.", max_length=100)] = "Agent",
    ) -> str:
        """Put a comment on a paragraph."""
        document = self._open(path)
        found = _find(document, element)
        if _is_table(found):
            raise ToolError(f"{element} is a table; comments go on paragraphs")
        spans = found.runs or [found.add_run("")]
        comment = document.add_comment([spans[0], spans[-1]], text=text, author=author, initials=author[:1])
        comment._comment_elm.attrib.pop(_DATE, None)  # noqa: SLF001  the day of a training run is not the world's
        _save(document, self._workspace.file(path))
        return f"commented on {element}"

    def set_header_footer(
        self, path: _File, place: _Place, text: Annotated[str, Field(description="One line of text.", max_length=1000)]
    ) -> str:
        """Set the header or footer of every page."""
        document = self._open(path)
        for section in document.sections:
            area = section.header if place == "header" else section.footer
            area.is_linked_to_previous = False
            area.paragraphs[0].text = text
        _save(document, self._workspace.file(path))
        return f"{place}: {text or '(empty)'}"

    def add_image(
        self,
        path: _File,
        image: Annotated[str, Field(description="PNG, JPEG, GIF or BMP file, relative to the workspace.")],
        element: Annotated[str | None, Field(description="Paragraph to put it after; the end if left out.")] = None,
        width_cm: Annotated[float, Field(description="Width on the page.", gt=0, le=50)] = 12.0,
    ) -> str:
        """Put a picture into a document."""
        from docx.shared import Pt  # noqa: PLC0415  with the library

        document = self._open(path)
        data = read_picture(self._workspace, image)
        anchor = _find(document, element)._element if element else None  # noqa: SLF001  as above
        paragraph = document.add_paragraph()
        with understood(image, "a picture"):
            paragraph.add_run().add_picture(data, width=Pt(width_cm * _POINTS_PER_CM))
        if anchor is not None:
            anchor.addnext(paragraph._element)  # noqa: SLF001  as above
        _save(document, self._workspace.file(path))
        return f"put {image} {'after ' + element if element else 'at the end'}"

    def _open(self, path: str) -> Any:
        from docx import Document  # noqa: PLC0415  a tenth of a second

        data = read_package(self._workspace, path, _ENDINGS)
        with understood(path, "a Word document"):
            return Document(data)


_DATE = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}date"


def build(workspace: Workspace) -> ToolServer:
    """The server `docs` over a workspace."""
    server = ToolServer("docs", "Reads, writes and edits Word documents.", libraries=("docx",))
    tools = DocsTools(workspace)
    server.expose(tools.read_doc, advice="read fewer elements at once", is_apart=True)
    for tool in (
        tools.outline,
        tools.search_doc,
        tools.create_doc,
        tools.insert_content,
        tools.append_content,
        tools.set_text,
        tools.replace_text,
        tools.delete_element,
        tools.add_table_row,
        tools.format_text,
        tools.read_comments,
        tools.add_comment,
        tools.set_header_footer,
        tools.add_image,
    ):
        server.expose(tool, is_apart=True)
    return server


def _is_table(element: Any) -> bool:
    return hasattr(element, "columns")


def _elements(document: Any) -> list[tuple[str, Any]]:
    """Every paragraph and table of the body with its id."""
    counts = {"p": 0, "t": 0}
    found = []
    for element in document.iter_inner_content():
        kind = "t" if _is_table(element) else "p"
        found.append((f"{kind}{counts[kind]}", element))
        counts[kind] += 1
    return found


def _find(document: Any, name: str, *, may_be_cell: bool = False) -> Any:
    elements = dict(_elements(document))
    if cell := _CELL.fullmatch(name):
        if not may_be_cell:
            raise ToolError(f"{name!r} is a cell; name a paragraph or a table, such as 'p0' or 't0'")
        table = elements.get(f"t{cell[1]}")
        row, column = int(cell[2]), int(cell[3])
        if table is not None and row < len(table.rows) and column < len(table.rows[row].cells):
            return table.rows[row].cells[column]
    elif not _BLOCK.fullmatch(name):
        raise ToolError(f"{name!r} is no id; ids look like 'p3', 't0' or 't0.r1.c2', and read_doc shows them")
    if name not in elements:
        paragraphs = sum(known[0] == "p" for known in elements)
        raise ToolError(
            f"there is no {name}; the document has {paragraphs} paragraphs and {len(elements) - paragraphs} tables"
            ", counted from 0; read_doc shows their ids"
        )
    return elements[name]


def _shown(name: str, element: Any) -> str:
    if not _is_table(element):
        return f"{name} [{_style(element)}] {element.text}"
    rows = [[cell.text for cell in row.cells] for row in element.rows]
    return f"{name} [Table, {len(rows)} rows]\n{table_text(rows)}"


def _style(paragraph: Any) -> str:
    return paragraph.style.name if paragraph.style is not None else "Normal"


def _known_style(document: Any, name: str) -> Any:
    from docx.enum.style import WD_STYLE_TYPE  # noqa: PLC0415  with the library

    styles = {style.name: style for style in document.styles if style.type == WD_STYLE_TYPE.PARAGRAPH}
    if name not in styles:
        raise ToolError(f"there is no style {name!r}; the styles are: {', '.join(sorted(styles))}")
    return styles[name]


def _append(document: Any, block: Block) -> Any:
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


def _paragraphs(document: Any) -> list[Any]:
    """Paragraphs of the body and of its tables, each once."""
    found = []
    for _, element in _elements(document):
        if not _is_table(element):
            found.append(element)
            continue
        cells = {id(cell._tc): cell for row in element.rows for cell in row.cells}  # noqa: SLF001  merged cells
        found += [paragraph for cell in cells.values() for paragraph in cell.paragraphs]
    return found


def _set_text(element: Any, text: str) -> None:
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


def _replace(paragraph: Any, old: str, new: str) -> int:
    """Replace within runs, so that looks stay; where the text spans several, the first one takes it all."""
    count = int(paragraph.text.count(old))
    if not count:
        return 0
    if sum(run.text.count(old) for run in paragraph.runs) == count:
        for run in paragraph.runs:
            if old in run.text:
                run.text = run.text.replace(old, new)
    else:
        _set_text(paragraph, paragraph.text.replace(old, new))
    return count


def _save(document: Any, file: Any) -> None:
    data = BytesIO()
    document.save(data)
    replace_file(file, data.getvalue())
