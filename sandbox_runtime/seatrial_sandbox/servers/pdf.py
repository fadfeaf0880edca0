"""MCP server `pdf`: read PDF files, tables with their columns and pages as images, and write new ones."""

from io import BytesIO
from typing import Annotated, Any
from xml.sax.saxutils import escape

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.apart import Picture
from seatrial_sandbox.markup import Block, Heading, Item, Paragraph, Table, blocks, plain, runs, table_text
from seatrial_sandbox.office_files import new_file, read_file, replace_file, understood
from seatrial_sandbox.pictures import ENDINGS, MAX_PIXELS, read_picture, shown
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

MAX_PAGES = 20
"""Most pages of one call."""
_ENDINGS = (".pdf",)
_PICTURES = (*ENDINGS, ".webp", ".tif", ".tiff")
_POINTS_PER_INCH = 72
_ITEM_INDENT = 14

_File = Annotated[str, Field(description="PDF file, relative to the workspace.")]
_Page = Annotated[int, Field(description="Number of the page, from 1.", ge=1)]


class PdfTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def read_pdf_pages(
        self,
        path: _File,
        first: _Page = 1,
        last: Annotated[int | None, Field(description=f"Last page; at most {MAX_PAGES} at once.", ge=1)] = None,
    ) -> str:
        """Read pages as text; ruled tables follow as Markdown, with their columns."""
        with self._open(path) as document:
            count = len(document.pages)
            end = min(last or count, count)
            if first > end:
                raise ToolError(f"there are no pages {first} to {last or count}; the file has {count}")
            until = min(end, first + MAX_PAGES - 1)
            with understood(path, "a PDF file"):
                texts = [_page_text(page, count) for page in document.pages[first - 1 : until]]
        if until < end:
            texts.append(f"[at most {MAX_PAGES} pages at once; go on with first={until + 1}]")
        return "\n\n".join(texts)

    def search_pdf(
        self, path: _File, query: Annotated[str, Field(description="Text to find; case does not matter.", min_length=1)]
    ) -> str:
        """Find the lines of a PDF that hold a text: answers with `page N: line`."""
        found = []
        with self._open(path) as document, understood(path, "a PDF file"):
            for page in document.pages:
                lines = (page.extract_text() or "").splitlines()
                found += [f"page {page.page_number}: {line}" for line in lines if query.lower() in line.lower()]
                page.close()
        return "\n".join(found) or f"nothing matches {query!r}; a scanned page has no text: see read_page_as_image"

    def read_page_as_image(self, path: _File, page: _Page = 1) -> Picture:
        """Look at a page, as a picture."""
        import pypdfium2  # noqa: PLC0415  a tenth of a second

        data = read_file(self._workspace, path, _ENDINGS)
        with understood(path, "a PDF file"):
            document = pypdfium2.PdfDocument(data)
            count = len(document)
        if page > count:
            raise ToolError(f"there is no page {page}; the file has {count}")
        with understood(path, "a PDF file"):
            sheet = document[page - 1]
            longest = max(*sheet.get_size(), 1)
            scale = min(MAX_PIXELS / longest, 150 / _POINTS_PER_INCH)
            return shown(sheet.render(scale=scale).to_pil())

    def read_image(
        self, path: Annotated[str, Field(description="Image file (PNG, JPEG, ...), relative to the workspace.")]
    ) -> Picture:
        """Look at an image file."""
        from PIL import Image  # noqa: PLC0415  a tenth of a second

        data = read_picture(self._workspace, path, _PICTURES)
        with understood(path, "an image"):
            return shown(Image.open(data))

    def create_pdf(
        self,
        path: _File,
        markdown: Annotated[str, Field(description="Markdown: headings, paragraphs, lists, tables, **bold**.")],
    ) -> str:
        """Write a new PDF, or replace one."""
        from reportlab.lib.pagesizes import A4  # noqa: PLC0415  a third of a second
        from reportlab.platypus import SimpleDocTemplate, Spacer  # noqa: PLC0415

        file = new_file(self._workspace, path, _ENDINGS)
        content = blocks(markdown)
        if not content:
            raise ToolError("markdown is empty; write what the pages are to hold")
        data = BytesIO()
        pieces = [piece for block in content for piece in (_flowable(block), Spacer(1, 6))]
        document = SimpleDocTemplate(data, pagesize=A4, invariant=1, title=plain(_title(content)))
        document.build(pieces)
        replace_file(file, data.getvalue())
        missing = _without_glyph(markdown)
        note = f"; its font has no letters for: {' '.join(missing[:50])}" if missing else ""
        return f"wrote {path} with {document.page} pages{note}"

    def _open(self, path: str) -> Any:
        import pdfplumber  # noqa: PLC0415  a third of a second

        data = read_file(self._workspace, path, _ENDINGS)
        with understood(path, "a PDF file"):
            document = pdfplumber.open(BytesIO(data))
            len(document.pages)
            return document


def build(workspace: Workspace) -> ToolServer:
    """The server `pdf` over a workspace."""
    server = ToolServer(
        "pdf",
        "Reads and writes PDF files and looks at images.",
        libraries=("pdfplumber", "pypdfium2", "PIL.Image", "reportlab.platypus"),
    )
    tools = PdfTools(workspace)
    server.expose(tools.read_pdf_pages, advice="read fewer pages at once", is_apart=True)
    for tool in (tools.search_pdf, tools.read_page_as_image, tools.read_image, tools.create_pdf):
        server.expose(tool, is_apart=True)
    return server


def _page_text(page: Any, count: int) -> str:
    parts = [f"[page {page.page_number} of {count}]", page.extract_text() or "(no text; see read_page_as_image)"]
    for number, table in enumerate(page.extract_tables(), 1):
        rows = [["" if cell is None else str(cell) for cell in row] for row in table]
        parts.append(f"[table {number} of page {page.page_number}]\n{table_text(rows)}")
    page.close()
    return "\n".join(parts)


def _title(content: list[Block]) -> str:
    return next((block.text for block in content if isinstance(block, Heading)), "")


def _flowable(block: Block) -> Any:
    from reportlab.lib import colors  # noqa: PLC0415  with the library
    from reportlab.lib.styles import ParagraphStyle, getSampleStyleSheet  # noqa: PLC0415
    from reportlab.platypus import Paragraph as Text  # noqa: PLC0415
    from reportlab.platypus import Table as Grid  # noqa: PLC0415

    _register_fonts()
    styles = getSampleStyleSheet()
    for style in (style for style in styles.byName.values() if isinstance(style, ParagraphStyle)):
        style.fontName = "VeraBd" if style.fontName.endswith("Bold") else "Vera"
    match block:
        case Heading(text, level):
            return Text(_marked(text), styles[f"Heading{level}"])
        case Paragraph(text):
            return Text(_marked(text), styles["BodyText"])
        case Item(text, depth, number):
            style = ParagraphStyle("item", parent=styles["BodyText"], leftIndent=_ITEM_INDENT * (depth + 1))
            return Text(f"{'•' if number is None else f'{number}.'} {_marked(text)}", style)
        case Table(rows):
            cells = [[Text(_marked(cell), styles["BodyText"]) for cell in row] for row in rows]
            look = [("GRID", (0, 0), (-1, -1), 0.5, colors.grey), ("BACKGROUND", (0, 0), (-1, 0), colors.whitesmoke)]
            return Grid(cells, style=look, repeatRows=1)


def _register_fonts() -> None:
    """The fonts that come with reportlab: their text can be read again, whatever its letters."""
    from reportlab.lib.fonts import addMapping  # noqa: PLC0415  with the library
    from reportlab.pdfbase import pdfmetrics  # noqa: PLC0415
    from reportlab.pdfbase.ttfonts import TTFont  # noqa: PLC0415

    for name in ("Vera", "VeraBd", "VeraIt", "VeraBI"):
        pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
    for family in ("Vera", "VeraBd"):
        for is_bold, is_italic, name in ((0, 0, family), (1, 0, "VeraBd"), (0, 1, "VeraIt"), (1, 1, "VeraBI")):
            addMapping(family, is_bold, is_italic, name)


def _without_glyph(text: str) -> list[str]:
    """Letters of a text that the font does not have."""
    from reportlab.pdfbase import pdfmetrics  # noqa: PLC0415  with the library

    known = pdfmetrics.getFont("Vera").face.charToGlyph
    return sorted({letter for letter in text if ord(letter) not in known and letter.isprintable()})


def _marked(text: str) -> str:
    """Text with its emphasis as reportlab writes it, and nothing else that it would take for a mark."""
    pieces = []
    for run in runs(text):
        piece = escape(run.text)
        pieces.append(f"<b>{piece}</b>" if run.is_bold else f"<i>{piece}</i>" if run.is_italic else piece)
    return "".join(pieces)
