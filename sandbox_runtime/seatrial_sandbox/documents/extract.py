"""Text and tables of one document, within a budget."""

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from seatrial_sandbox.documents import readers
from seatrial_sandbox.documents.part import Part

MAX_FILE_BYTES = 64 * 1024**2
"""Largest document that is read."""
MAX_UNPACKED_BYTES = 256 * 1024**2
"""Most bytes that a document may unpack to."""
_TEXT_ENDING = re.compile(
    r"\.(txt|md|rst|csv|tsv|jsonl?|ya?ml|toml|ini|cfg|xml|html|css|ics|vcf|log|sql|tex|py|sh|js|ts|java|go|rs|c|h|cpp|rb|r)"
)

type Reader = Callable[[bytes], Iterator[Part]]

_OFFICE = "application/vnd.openxmlformats-officedocument"
_TYPES = {
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    ".xlsm": f"{_OFFICE}.spreadsheetml.sheet",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
    ".pdf": "application/pdf",
    ".eml": "message/rfc822",
    ".mbox": "application/mbox",
}
_READERS: dict[str, Reader] = {
    "text/plain": readers.text,
    _TYPES[".docx"]: readers.docx,
    _TYPES[".xlsx"]: readers.xlsx,
    _TYPES[".pptx"]: readers.pptx,
    _TYPES[".pdf"]: readers.pdf,
    _TYPES[".eml"]: readers.eml,
    _TYPES[".mbox"]: readers.mbox,
}
_ZIPPED = {_TYPES[".docx"], _TYPES[".xlsx"], _TYPES[".pptx"]}


@dataclass(frozen=True, slots=True)
class Extract:
    """What a document says."""

    media_type: str
    parts: tuple[Part, ...] = ()
    truncated: bool = False
    """Whether the budget ended before the document did."""
    error: str = ""
    """Why it cannot be read; no parts then."""


@dataclass(slots=True)
class _Budget:
    """Cuts parts to what is left of a number of bytes."""

    left: int
    truncated: bool = False
    kept: list[Part] = field(default_factory=list)

    def take(self, part: Part) -> bool:
        """Keep a part, or what fits of it; returns whether there is room for more."""
        text = self._cut(part.text)
        rows: list[tuple[str, ...]] = []
        for row in part.rows:
            size = sum(len(cell.encode(errors="replace")) + 1 for cell in row)
            if size > self.left:
                self.truncated = True
                break
            self.left -= size
            rows.append(row)
        self.kept.append(Part(part.title[:200], text, tuple(rows)))
        return not self.truncated

    def _cut(self, text: str) -> str:
        data = text.encode(errors="replace")
        self.truncated |= len(data) > self.left
        data = data[: self.left]
        self.left -= len(data)
        return data.decode(errors="ignore")


def media_type(name: str) -> str:
    """Type of a document that can be read, by its name's ending; empty for any other."""
    ending = PurePosixPath(name.lower()).suffix
    return "text/plain" if _TEXT_ENDING.fullmatch(ending) else _TYPES.get(ending, "")


def extract(name: str, data: bytes, max_bytes: int) -> Extract:
    """What a document says.

    Args:
        name: Its file name, whose ending tells its type.
        data: Its content.
        max_bytes: Most bytes of text, cells included.
    """
    kind = media_type(name)
    budget = _Budget(max_bytes)
    try:
        if kind in _ZIPPED:
            _check_zip(data)
        for part in _READERS[kind](data):
            if not budget.take(part):
                break
    except Exception as error:  # noqa: BLE001  whatever a library makes of a hostile document
        return Extract(kind, error=f"{type(error).__name__}: {error}"[:500])
    return Extract(kind, tuple(budget.kept), budget.truncated)


def _check_zip(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        unpacked = sum(member.file_size for member in packed.infolist())
    if unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {unpacked} bytes")
