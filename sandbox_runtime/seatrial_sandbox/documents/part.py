"""What documents are made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A sheet, a slide, a page, a table, a mail's body."""

    title: str
    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
