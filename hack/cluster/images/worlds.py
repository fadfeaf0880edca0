"""Worlds for sandboxes: a shell, with files or without, and two that serve their own tools; none is made for us."""

from pathlib import Path

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.python import installed, interpreter, packages
from hack.cluster.images.store import archived
from hack.cluster.images.system import system

OFFICE = "localhost/office:test"
SHELL = "localhost/shell:test"
GATEWAY = "localhost/gateway:test"
GATEWAY_PORT = 8080
DELIVERED = "localhost/delivered:test"
DELIVERED_PORT = 8000
DELIVERED_TASK = "rent review"
"""Slug of the one task that the delivered world can be started for."""
RENT = "now 1200\nnext year 1300\n"
"""Its file `rent.txt`."""
_DELIVERED = Path(__file__).with_name("delivered")
_SERVER = f'''
"""Keeps notes in the folder where it starts, over streamable HTTP."""
import os
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")

@server.tool()
def add_note(text: str) -> str:
    """Write a note down."""
    with Path("notes.txt").open("a") as notes:
        notes.write(text + "\\n")
    return f"noted by {{os.getuid()}}"

@server.tool()
def read_notes() -> str:
    """All notes."""
    return Path("notes.txt").read_text()

server.run("streamable-http", host="0.0.0.0", port={GATEWAY_PORT}, streamable_http_path="/mcp/")
'''


def office_image() -> Path:
    """Archive of a world with a shell and files that belong to root, and without Python."""

    def fill(layer: Layer) -> None:
        system(layer)
        layer.text("workspace/budget/2026.txt", "rent 1200\n")
        layer.text("workspace/run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
        layer.link("workspace/latest", "budget/2026.txt")

    return archived(Image(OFFICE, command=("bash",)), fill, made_of=[])


def shell_image() -> Path:
    """Archive of a world with a shell and nothing else: tasks bring their files along."""
    return archived(Image(SHELL, command=("bash",)), system, made_of=[])


def gateway_image() -> Path:
    """Archive of an image whose own command serves tools: a world of the kind Archipelago, or a server beside one."""

    def fill(layer: Layer) -> None:
        system(layer)
        interpreter(layer)
        packages(layer, "mcp")
        layer.text("app/server.py", _SERVER)
        layer.folder("workspace", 0o777)

    image = Image(GATEWAY, command=("python3", "-B", "/app/server.py"), folder="/workspace")
    return archived(image, fill, made_of=installed())


def delivered_image() -> Path:
    """Archive of a world as Archipelago's makers deliver theirs: one container that is started for a task.

    `/app/tools/start.sh SLUG` serves on port 8000, and puts the task's files into /filesystem.
    """

    def fill(layer: Layer) -> None:
        system(layer)
        interpreter(layer)
        packages(layer, "mcp")
        delivered_parts(layer)

    made_of = [*installed(), *(file for file in _DELIVERED.rglob("*") if file.is_file())]
    return archived(Image(DELIVERED, command=("sleep", "infinity"), folder="/app"), fill, made_of=made_of)


def delivered_parts(layer: Layer) -> None:
    """What starts a delivered world's server, and the files of its one task; parts that are there already stay."""
    layer.tree(_DELIVERED, "app", leave_out=["__pycache__"])
    layer.text(f"app/snapshots/{DELIVERED_TASK}/filesystem/rent.txt", RENT)
    layer.folder("filesystem")
