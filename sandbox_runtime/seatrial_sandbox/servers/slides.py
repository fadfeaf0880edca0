"""MCP server `slides`: read, write and edit PowerPoint decks, by the numbers of slides and shapes."""

from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.deck_files import (
    ENDINGS,
    SlideContent,
    append_slide,
    open_deck,
    paragraphs_of,
    remove_slide,
    reorder_slide,
    save_deck,
    shape_of,
    shown,
    slide_of,
    title_of,
)
from seatrial_sandbox.office_files import new_file, understood
from seatrial_sandbox.pictures import read_picture
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_MAX_SLIDES = 500

_File = Annotated[str, Field(description="PowerPoint deck (.pptx), relative to the workspace.")]
_Slide = Annotated[int, Field(description="Number of the slide, from 1.", ge=1)]
_Shape = Annotated[int, Field(description="Number of the shape on the slide, as read_slide shows it.", ge=0)]
_Title = Annotated[str, Field(description="Title of the slide.")]
_Bullets = Annotated[list[str], Field(description="Points; two spaces before one put it a level deeper.")]
_Rows = Annotated[list[list[str]], Field(description="Rows of texts; the first one is the header.", min_length=1)]
_Kind = Annotated[Literal["bar", "column", "line", "pie"], Field(description="Kind of chart.")]


class SlidesTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def list_slides(self, path: _File) -> str:
        """List the slides of a deck with their titles."""
        slides = self._open(path).slides
        return "\n".join(f"{number} {title_of(slide)}" for number, slide in enumerate(slides, 1)) or "no slides"

    def read_slide(self, path: _File, slide: _Slide) -> str:
        """Read a slide: its shapes with their numbers and texts, tables with their columns, and the notes."""
        found = slide_of(self._open(path), slide)
        lines = [shown(number, shape) for number, shape in enumerate(found.shapes)]
        if found.has_notes_slide and found.notes_slide.notes_text_frame is not None:
            lines.append(f"notes: {found.notes_slide.notes_text_frame.text}")
        return "\n".join(lines) or "the slide is empty"

    def search_slides(
        self, path: _File, query: Annotated[str, Field(description="Text to find; case does not matter.", min_length=1)]
    ) -> str:
        """Find the shapes of a deck that hold a text."""
        found = []
        for number, slide in enumerate(self._open(path).slides, 1):
            for index, shape in enumerate(slide.shapes):
                text = shown(index, shape)
                if query.lower() in text.lower():
                    found.append(f"slide {number}, shape {text}")
        return "\n".join(found) or f"nothing matches {query!r}"

    def create_deck(
        self,
        path: _File,
        slides: Annotated[list[SlideContent], Field(description="The slides in order.", max_length=_MAX_SLIDES)],
    ) -> str:
        """Write a new deck, or replace one."""
        from pptx import Presentation  # noqa: PLC0415  a tenth of a second

        file = new_file(self._workspace, path, ENDINGS)
        deck = Presentation()
        for content in slides:
            append_slide(deck, content)
        save_deck(deck, file)
        return f"wrote {path} with {len(slides)} slides"

    def add_slide(
        self,
        path: _File,
        title: _Title,
        bullets: _Bullets = [],  # noqa: B006  never changed; a default that the schema shows
        notes: Annotated[str, Field(description="Notes of the speaker.")] = "",
        position: Annotated[int | None, Field(description="Number it will have; last if left out.", ge=1)] = None,
    ) -> str:
        """Add a slide with a title and points."""
        deck = self._open(path)
        count = len(deck.slides)
        if position is not None and position > count + 1:
            raise ToolError(f"position is {position}, but the deck has {count} slides; the next one is {count + 1}")
        append_slide(deck, SlideContent(title=title, bullets=bullets, notes=notes))
        if position is not None:
            reorder_slide(deck, count, position - 1)
        self._save(deck, path)
        return f"added slide {position or count + 1} of {count + 1}"

    def delete_slide(self, path: _File, slide: _Slide) -> str:
        """Take a slide out; those after it move up."""
        deck = self._open(path)
        slide_of(deck, slide)
        remove_slide(deck, slide - 1)
        self._save(deck, path)
        return f"deleted slide {slide}; {len(deck.slides)} are left"

    def move_slide(
        self, path: _File, slide: _Slide, to: Annotated[int, Field(description="Number it will have, from 1.", ge=1)]
    ) -> str:
        """Put a slide at another place."""
        deck = self._open(path)
        for number in (slide, to):
            slide_of(deck, number)
        reorder_slide(deck, slide - 1, to - 1)
        self._save(deck, path)
        return f"slide {slide} is slide {to} now"

    def set_text(
        self,
        path: _File,
        slide: _Slide,
        shape: _Shape,
        text: Annotated[str, Field(description="The whole new text; each line is a paragraph.")],
    ) -> str:
        """Change the text of a shape."""
        deck = self._open(path)
        found = shape_of(deck, slide, shape)
        if not found.has_text_frame:
            raise ToolError(f"shape {shape} of slide {slide} holds no text; read_slide shows which do")
        before = found.text_frame.text
        found.text_frame.text = text
        self._save(deck, path)
        return f"{before or '(empty)'} -> {text or '(empty)'}"

    def replace_text(
        self,
        path: _File,
        old: Annotated[str, Field(description="Text to find, exactly as it is written.", min_length=1)],
        new: Annotated[str, Field(description="What to put in its place.")],
    ) -> str:
        """Replace a text wherever it stands on the slides; how it looks stays."""
        deck = self._open(path)
        count = 0
        for paragraph in paragraphs_of(deck):
            for run in paragraph.runs:
                count += run.text.count(old)
                run.text = run.text.replace(old, new)
        if not count:
            raise ToolError(f"{old!r} is not in {path!r}; search_slides finds text whatever its case")
        self._save(deck, path)
        return f"replaced {count} times"

    def set_table_cell(
        self,
        path: _File,
        slide: _Slide,
        shape: _Shape,
        cell: Annotated[str, Field(description="Row and column from 0, such as 'r1.c2'.", pattern=r"^r\d+\.c\d+$")],
        text: Annotated[str, Field(description="The new text.")],
    ) -> str:
        """Change one cell of a table."""
        deck = self._open(path)
        found = shape_of(deck, slide, shape)
        if not found.has_table:
            raise ToolError(f"shape {shape} of slide {slide} is no table; read_slide shows which are")
        row, column = (int(part[1:]) for part in cell.split("."))
        rows, columns = len(found.table.rows), len(found.table.columns)
        if row >= rows or column >= columns:
            raise ToolError(f"there is no {cell}: the table has {rows} rows and {columns} columns, counted from 0")
        before = found.table.cell(row, column).text
        found.table.cell(row, column).text = text
        self._save(deck, path)
        return f"{cell}: {before or '(empty)'} -> {text or '(empty)'}"

    def add_table(self, path: _File, slide: _Slide, rows: _Rows) -> str:
        """Put a table on a slide."""
        from pptx.util import Inches  # noqa: PLC0415  with the library

        deck = self._open(path)
        width = len(rows[0])
        if not width or any(len(row) != width for row in rows):
            raise ToolError("the rows are not equally long; give every row as many texts as the header has")
        box = (Inches(0.7), Inches(1.8), Inches(8.6), Inches(0.4 * len(rows)))
        table = slide_of(deck, slide).shapes.add_table(len(rows), width, *box).table
        for row, values in enumerate(rows):
            for column, value in enumerate(values):
                table.cell(row, column).text = value
        self._save(deck, path)
        return f"added a table of {len(rows)} rows to slide {slide}"

    def add_chart(
        self,
        path: _File,
        slide: _Slide,
        kind: _Kind,
        categories: Annotated[list[str], Field(description="Names on the axis.", min_length=1)],
        series: Annotated[dict[str, list[float]], Field(description="Numbers by name, one per category.")],
    ) -> str:
        """Put a chart on a slide."""
        from pptx.chart.data import CategoryChartData  # noqa: PLC0415  with the library
        from pptx.enum.chart import XL_CHART_TYPE  # noqa: PLC0415
        from pptx.util import Inches  # noqa: PLC0415

        deck = self._open(path)
        found = slide_of(deck, slide)
        data: Any = CategoryChartData()  # type: ignore[no-untyped-call]  # python-pptx has few types
        data.categories = categories
        for name, numbers in series.items():
            if len(numbers) != len(categories):
                raise ToolError(f"series {name!r} has {len(numbers)} numbers for {len(categories)} categories")
            data.add_series(name, numbers)
        if not series:
            raise ToolError("series is empty; give numbers by name, such as {'sales': [1, 2]}")
        types = {
            "bar": XL_CHART_TYPE.BAR_CLUSTERED,
            "column": XL_CHART_TYPE.COLUMN_CLUSTERED,
            "line": XL_CHART_TYPE.LINE,
            "pie": XL_CHART_TYPE.PIE,
        }
        box = (Inches(0.7), Inches(1.8), Inches(8.6), Inches(4.8))
        found.shapes.add_chart(types[kind], *box, data)
        self._save(deck, path)
        return f"added a {kind} chart to slide {slide}"

    def add_image(
        self,
        path: _File,
        slide: _Slide,
        image: Annotated[str, Field(description="PNG, JPEG, GIF or BMP file, relative to the workspace.")],
        width_cm: Annotated[float, Field(description="Width on the slide.", gt=0, le=50)] = 12.0,
    ) -> str:
        """Put a picture on a slide."""
        from pptx.util import Cm  # noqa: PLC0415  with the library

        deck = self._open(path)
        found = slide_of(deck, slide)
        data = read_picture(self._workspace, image)
        with understood(image, "a picture"):
            found.shapes.add_picture(data, Cm(2), Cm(5), width=Cm(width_cm))
        self._save(deck, path)
        return f"put {image} on slide {slide}"

    def set_notes(
        self, path: _File, slide: _Slide, text: Annotated[str, Field(description="The whole notes of the speaker.")]
    ) -> str:
        """Set the speaker's notes of a slide."""
        deck = self._open(path)
        slide_of(deck, slide).notes_slide.notes_text_frame.text = text
        self._save(deck, path)
        return f"set the notes of slide {slide}"

    def _open(self, path: str) -> Any:
        return open_deck(self._workspace, path)

    def _save(self, deck: Any, path: str) -> None:
        save_deck(deck, self._workspace.file(path))


def build(workspace: Workspace) -> ToolServer:
    """The server `slides` over a workspace."""
    server = ToolServer("slides", "Reads, writes and edits PowerPoint decks.", libraries=("pptx",))
    tools = SlidesTools(workspace)
    for tool in (
        tools.list_slides,
        tools.read_slide,
        tools.search_slides,
        tools.create_deck,
        tools.add_slide,
        tools.delete_slide,
        tools.move_slide,
        tools.set_text,
        tools.replace_text,
        tools.set_table_cell,
        tools.add_table,
        tools.add_chart,
        tools.add_image,
        tools.set_notes,
    ):
        server.expose(tool, is_apart=True)
    return server
