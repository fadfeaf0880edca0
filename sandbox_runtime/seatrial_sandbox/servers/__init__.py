"""The MCP servers that come with a sandbox."""

from collections.abc import Callable
from functools import partial

from seatrial_sandbox.meta_surface import meta_surface
from seatrial_sandbox.servers import calendar, chat, code, docs, filesystem, mail, pdf, sheets, slides, workbooks
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

type Builder = Callable[[Workspace], ToolServer]

SERVERS: dict[str, Builder] = {
    "filesystem": filesystem.build,
    "sheets": sheets.build,
    "workbooks": workbooks.build,
    "docs": docs.build,
    "slides": slides.build,
    "pdf": pdf.build,
    "mail": mail.build,
    "chat": chat.build,
    "calendar": calendar.build,
    "code": code.build,
}
"""How to build each server with its individual tools."""


def _build_meta(build: Builder, workspace: Workspace) -> ToolServer:
    return meta_surface(build(workspace))


BUILDERS: dict[str, Builder] = {
    **SERVERS,
    **{f"{name}-meta": partial(_build_meta, build) for name, build in SERVERS.items()},
}
"""How to build each server, by the name that `seatrial-mcp` takes; `docs-meta` is `docs` with the meta surface."""
