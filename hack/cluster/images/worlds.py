"""Worlds for sandboxes: a shell, with files or without, and one that serves its own tools; none is made for us."""

from pathlib import Path

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.python import installed, interpreter, packages
from hack.cluster.images.store import archived
from hack.cluster.images.system import system

OFFICE = "localhost/office:test"
SHELL = "localhost/shell:test"
GATEWAY = "localhost/gateway:test"
GATEWAY_PORT = 8080
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
