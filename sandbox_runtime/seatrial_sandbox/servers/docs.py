"""MCP server `docs`: read, write and edit Word documents element by element, by the ids of `word_files`."""

import re
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.markup import blocks
from seatrial_sandbox.office_files import new_file, understood
from seatrial_sandbox.pictures import read_picture
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.word_files import (
    ENDINGS,
    append,
    change_text,
    elements,
    find,
    is_table,
    known_style,
    open_document,
    paragraphs_of,
    replace_in,
    save_document,
    shown,
    style_name,
)
from seatrial_sandbox.workspace import Workspace

_POINTS_PER_CM = 72 / 2.54
_DATE = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}date"

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
        lines = [shown(name, element) for name, element in elements(document)]
        if first and first >= len(lines):
            raise ToolError(f"{path!r} has {len(lines)} elements; first is {first}")
        more = len(lines) - first - count
        return "\n".join([*lines[first : first + count], *([f"[{more} more elements]"] if more > 0 else [])])

    def outline(self, path: _File) -> str:
        """List the headings of a document with their ids, indented by level."""
        lines = []
        for name, element in elements(self._open(path)):
            match = re.fullmatch(r"Heading (\d)", style_name(element)) if name[0] == "p" else None
            if match:
                lines.append(f"{'  ' * (int(match[1]) - 1)}{name} {element.text}")
        return "\n".join(lines) or "the document has no headings"

    def search_doc(
        self, path: _File, query: Annotated[str, Field(description="Text to find; case does not matter.", min_length=1)]
    ) -> str:
        """Find the paragraphs and cells that hold a text."""
        found = []
        for name, element in elements(self._open(path)):
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

        file = new_file(self._workspace, path, ENDINGS)
        document = Document()
        content = blocks(markdown)
        for block in content:
            append(document, block)
        save_document(document, file)
        return f"wrote {path} with {len(content)} elements"

    def insert_content(self, path: _File, element: _Element, markdown: _Markdown, where: _Where = "after") -> str:
        """Put new content beside an element."""
        document = self._open(path)
        content = blocks(markdown)
        if not content:
            raise ToolError("markdown is empty; write what is to be inserted")
        anchor = find(document, element)._element  # noqa: SLF001  python-docx has no other way to move
        made = [append(document, block)._element for block in content]  # noqa: SLF001
        for piece in made if where == "before" else reversed(made):
            (anchor.addprevious if where == "before" else anchor.addnext)(piece)
        self._save(document, path)
        return f"inserted {len(made)} elements {where} {element}"

    def append_content(self, path: _File, markdown: _Markdown) -> str:
        """Put new content at the end of a document."""
        document = self._open(path)
        content = blocks(markdown)
        for block in content:
            append(document, block)
        self._save(document, path)
        return f"added {len(content)} elements"

    def set_text(
        self, path: _File, element: _Element, text: Annotated[str, Field(description="The whole new text.")]
    ) -> str:
        """Change the text of a paragraph or a table's cell; its style stays."""
        document = self._open(path)
        found = find(document, element, may_be_cell=True)
        if is_table(found):
            raise ToolError(f"{element} is a table; name a cell of it, such as '{element}.r0.c0'")
        before = found.text
        change_text(found, text)
        self._save(document, path)
        return f"{element}: {before or '(empty)'} -> {text or '(empty)'}"

    def replace_text(
        self,
        path: _File,
        old: Annotated[str, Field(description="Text to find, exactly as it is written.", min_length=1)],
        new: Annotated[str, Field(description="What to put in its place.")],
    ) -> str:
        """Replace a text wherever it stands, in paragraphs and tables; how it looks stays where it can."""
        document = self._open(path)
        count = sum(replace_in(paragraph, old, new) for paragraph in paragraphs_of(document))
        if not count:
            raise ToolError(f"{old!r} is not in {path!r}; search_doc finds text whatever its case")
        self._save(document, path)
        return f"replaced {count} times"

    def delete_element(self, path: _File, element: _Element) -> str:
        """Take a paragraph or table out; ids after it move up."""
        document = self._open(path)
        found = find(document, element)._element  # noqa: SLF001  python-docx cannot delete
        found.getparent().remove(found)
        self._save(document, path)
        return f"deleted {element}"

    def add_table_row(
        self,
        path: _File,
        element: _Element,
        values: Annotated[list[str], Field(description="One text per column.")],
    ) -> str:
        """Add a row at the end of a table."""
        document = self._open(path)
        table = find(document, element)
        if not is_table(table):
            raise ToolError(f"{element} is a paragraph; read_doc shows which elements are tables")
        if len(values) != len(table.columns):
            raise ToolError(f"{len(values)} values for {len(table.columns)} columns")
        for cell, value in zip(table.add_row().cells, values, strict=True):
            cell.text = value
        self._save(document, path)
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
        found = find(document, element, may_be_cell=True)
        if is_table(found):
            raise ToolError(f"{element} is a table; name a cell of it, such as '{element}.r0.c0'")
        paragraphs = found.paragraphs if hasattr(found, "paragraphs") else [found]
        for paragraph in paragraphs:
            if style is not None:
                paragraph.style = known_style(document, style)
            for run in paragraph.runs:
                run.bold = run.bold if bold is None else bold
                run.italic = run.italic if italic is None else italic
                if size_points is not None:
                    run.font.size = Pt(size_points)
        self._save(document, path)
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
        found = find(document, element)
        if is_table(found):
            raise ToolError(f"{element} is a table; comments go on paragraphs")
        spans = found.runs or [found.add_run("")]
        comment = document.add_comment([spans[0], spans[-1]], text=text, author=author, initials=author[:1])
        comment._comment_elm.attrib.pop(_DATE, None)  # noqa: SLF001  the day of a training run is not the world's
        self._save(document, path)
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
        self._save(document, path)
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
        anchor = find(document, element)._element if element else None  # noqa: SLF001  as above
        paragraph = document.add_paragraph()
        with understood(image, "a picture"):
            paragraph.add_run().add_picture(data, width=Pt(width_cm * _POINTS_PER_CM))
        if anchor is not None:
            anchor.addnext(paragraph._element)  # noqa: SLF001  as above
        self._save(document, path)
        return f"put {image} {'after ' + element if element else 'at the end'}"

    def _open(self, path: str) -> Any:
        return open_document(self._workspace, path)

    def _save(self, document: Any, path: str) -> None:
        save_document(document, self._workspace.file(path))


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
