"""The operator's image: the interpreter, and the operator with what it needs; no shell, no torch."""

from pathlib import Path

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.python import installed, interpreter, packages
from hack.cluster.images.store import archived
from hack.cluster.layout import ROOT

OPERATOR = "localhost/seatrial-operator:test"


def operator_image() -> Path:
    """Archive of the operator as it is in this checkout, running as user 65532."""

    def fill(layer: Layer) -> None:
        layer.text("etc/passwd", "root:x:0:0:root:/root:/sbin/nologin\nseatrial:x:65532:65532::/:/sbin/nologin\n")
        interpreter(layer)
        packages(layer, "seatrial-operator")

    sources = [file for part in ("api", "operator") for file in (ROOT / part).rglob("*.py")]
    image = Image(OPERATOR, command=("python", "-m", "seatrial_operator"), user="65532:65532")
    return archived(image, fill, made_of=[*sources, *installed()])
