"""Image files, checked before a document takes them in or a model looks at them."""

from io import BytesIO
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.apart import Picture
from seatrial_sandbox.office_files import read_file, understood
from seatrial_sandbox.workspace import Workspace

ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp")
"""What both Word and PowerPoint take."""
MAX_PIXELS = 1568
"""Longest side of a picture that a tool answers with; models see no more."""
MAX_SOURCE_PIXELS = 64_000_000
"""Largest image file that is opened; more is taken for a decompression bomb."""


def read_picture(workspace: Workspace, path: str, endings: tuple[str, ...] = ENDINGS) -> BytesIO:
    """The content of an image file.

    Raises:
        ToolError: If there is no such file, or it is no image, or too large a one.
    """
    from PIL import Image  # noqa: PLC0415  a tenth of a second

    data = read_file(workspace, path, endings)
    with understood(path, "an image"):
        image = Image.open(BytesIO(data))
        width, height = image.size
        if width * height > MAX_SOURCE_PIXELS:
            raise ToolError(f"{path!r} has {width} x {height} pixels, too many to open")
        image.load()
    return BytesIO(data)


def shown(image: Any) -> Picture:
    """An image of PIL as an answer, made smaller if it is too large."""
    image.thumbnail((MAX_PIXELS, MAX_PIXELS))
    data = BytesIO()
    image.convert("RGB").save(data, "PNG", optimize=True)
    return Picture(data.getvalue())
