"""The sandbox runtime's image: a Python that needs nothing of a world, with `sandboxd` and the tool servers."""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.python import installed, packages
from hack.cluster.images.store import archived
from hack.cluster.layout import ROOT
from seatrial_api.sandboxes import RUNTIME_MOUNT

SANDBOX_RUNTIME = "localhost/seatrial-sandbox-runtime:test"
_ASSEMBLE = ROOT / "images/sandbox-runtime/assemble.py"


def sandbox_runtime_image() -> Path:
    """Archive of the runtime as it is in this checkout; nothing else is in it."""

    def fill(layer: Layer) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "runtime"
            _assemble("copy", folder)
            _install(folder, Path(scratch) / "packages.tar")
            _assemble("seal", folder)
            layer.tree(folder, str(RUNTIME_MOUNT))

    sources = [file for part in ("api", "sandbox_runtime") for file in (ROOT / part).rglob("*.py")]
    image = Image(SANDBOX_RUNTIME, command=(f"{RUNTIME_MOUNT}/bin/seatrial-mcp",), user="65532:65532")
    return archived(image, fill, made_of=[*sources, _ASSEMBLE, *installed()])


def _assemble(step: str, folder: Path) -> None:
    subprocess.run([sys.executable, _ASSEMBLE, step, folder], check=True)


def _install(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as tar:
        packages(Layer(tar), "seatrial-sandbox", prefix="")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="tar")
