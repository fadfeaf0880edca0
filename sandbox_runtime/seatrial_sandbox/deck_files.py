"""PowerPoint decks as their slides, which count from 1, and the shapes of those, which count from 0."""

from io import BytesIO
from pathlib import Path
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from seatrial_sandbox.markup import table_text
from seatrial_sandbox.office_files import read_package, replace_file, understood
from seatrial_sandbox.workspace import Workspace

ENDINGS = (".pptx",)
"""What their names end with."""
_TITLE_AND_CONTENT, _TITLE_ONLY = 1, 5


class SlideContent(BaseModel):
    """A slide to be made."""

    title: str = Field(description="Title of the slide.")
    bullets: list[str] = Field(default=[], description="Points; two spaces before one put it a level deeper.")
    notes: str = Field(default="", description="Notes of the speaker.")


def open_deck(workspace: Workspace, path: str) -> Any:
    """The deck of a file, a `pptx.presentation.Presentation`.

    Raises:
        ToolError: If there is no such file, or it is no PowerPoint deck.
    """
    from pptx import Presentation  # noqa: PLC0415  a tenth of a second

    data = read_package(workspace, path, ENDINGS)
    with understood(path, "a PowerPoint deck"):
        deck = Presentation(data)
        len(deck.slides)
        return deck


def save_deck(deck: Any, file: Path) -> None:
    """Write a deck to a file."""
    data = BytesIO()
    deck.save(data)
    replace_file(file, data.getvalue())


def slide_of(deck: Any, number: int) -> Any:
    """A slide by its number.

    Raises:
        ToolError: If there is none.
    """
    count = len(deck.slides)
    if number > count:
        raise ToolError(f"there is no slide {number}; the deck has {count}")
    return deck.slides[number - 1]


def shape_of(deck: Any, slide: int, number: int) -> Any:
    """A shape by the numbers of its slide and its own.

    Raises:
        ToolError: If there is none.
    """
    shapes = slide_of(deck, slide).shapes
    if number >= len(shapes):
        raise ToolError(f"slide {slide} has {len(shapes)} shapes, counted from 0; read_slide shows them")
    return shapes[number]


def title_of(slide: Any) -> str:
    """What the title of a slide says, in one line."""
    title = slide.shapes.title
    return " ".join(title.text_frame.text.split()) if title is not None else "(no title)"


def shown(number: int, shape: Any) -> str:
    """A shape as read_slide shows it."""
    head = f"{number} {shape.name}"
    if shape.has_text_frame:
        return f"{head}: {shape.text_frame.text}"
    if getattr(shape, "has_table", False):
        return f"{head}:\n{table_text([[cell.text for cell in row.cells] for row in shape.table.rows])}"
    if getattr(shape, "has_chart", False):
        rows = [["", *(str(name) for name in shape.chart.plots[0].categories)]]
        rows += [[series.name, *(f"{value:g}" for value in series.values)] for series in shape.chart.series]
        return f"{head}:\n{table_text(rows)}"
    return head


def paragraphs_of(deck: Any) -> list[Any]:
    """Paragraphs of all shapes and of the cells of tables."""
    found = []
    for slide in deck.slides:
        for shape in slide.shapes:
            frames = [shape.text_frame] if shape.has_text_frame else []
            if getattr(shape, "has_table", False):
                frames += [cell.text_frame for row in shape.table.rows for cell in row.cells]
            found += [paragraph for frame in frames for paragraph in frame.paragraphs]
    return found


def append_slide(deck: Any, content: SlideContent) -> None:
    """Make a slide at the end of a deck."""
    wanted = _TITLE_AND_CONTENT if content.bullets else _TITLE_ONLY
    slide = deck.slides.add_slide(deck.slide_layouts[min(wanted, len(deck.slide_layouts) - 1)])
    if slide.shapes.title is not None:
        slide.shapes.title.text = content.title
    bodies = [shape for shape in slide.placeholders if shape.placeholder_format.idx == 1]
    if content.bullets and bodies:
        frame = bodies[0].text_frame
        for index, bullet in enumerate(content.bullets):
            paragraph = frame.paragraphs[0] if index == 0 else frame.add_paragraph()
            paragraph.text = bullet.strip()
            paragraph.level = min((len(bullet) - len(bullet.lstrip())) // 2, 8)
    if content.notes:
        slide.notes_slide.notes_text_frame.text = content.notes


def remove_slide(deck: Any, index: int) -> None:
    """Take a slide out; the first is 0."""
    entries = deck.slides._sldIdLst  # noqa: SLF001  python-pptx cannot delete
    entry = entries[index]
    deck.part.drop_rel(entry.rId)
    entries.remove(entry)


def reorder_slide(deck: Any, index: int, to: int) -> None:
    """Put a slide at another place; both count from 0."""
    entries = deck.slides._sldIdLst  # noqa: SLF001  python-pptx cannot move
    entry = entries[index]
    entries.remove(entry)
    entries.insert(to, entry)
