"""The smallest images: what holds a pod together, and a shell to try things from."""

import subprocess
from pathlib import Path

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.store import archived
from hack.cluster.layout import BIN

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
_BUSYBOX_PROGRAM = Path("/usr/bin/busybox")


def pause_image() -> Path:
    """Archive of the image that holds a pod's namespaces."""
    program = BIN / "pause"

    def fill(layer: Layer) -> None:
        layer.file(program, "pause")

    return archived(Image(PAUSE, command=("/pause",)), fill, made_of=[program])


def busybox_image() -> Path:
    """Archive of an image with a shell, `wget`, `httpd`, `nslookup` and the like, from Debian's static busybox."""

    def fill(layer: Layer) -> None:
        layer.file(_BUSYBOX_PROGRAM, "bin/busybox")
        names = subprocess.run([_BUSYBOX_PROGRAM, "--list"], capture_output=True, text=True, check=True)
        for name in names.stdout.split():
            layer.link(f"bin/{name}", "busybox")

    return archived(Image(BUSYBOX, command=("/bin/sh",)), fill, made_of=[_BUSYBOX_PROGRAM])
