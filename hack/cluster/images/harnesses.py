"""The agents' image as far as Python makes it: `mini-swe-agent` on a Python that needs nothing of a world."""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.store import archived
from hack.cluster.layout import ROOT
from seatrial_api.sandboxes import HARNESSES_MOUNT

HARNESSES = "localhost/seatrial-harnesses:test"
MINI_SWE_AGENT = ROOT / ".cache/harnesses/mini-swe-agent"
"""Where `hack/install_harnesses.py` has put it, from the lock of the image."""
_LEFT_OUT = shutil.ignore_patterns("pyarrow*", "pandas*", "numpy*", "boto*", "datasets*", "hf_xet*", "tests")
"""What it takes along for other uses, most of its size."""
_ASSEMBLE = ROOT / "images/sandbox-runtime/assemble.py"
_PACKAGES = f"lib/python{sysconfig.get_python_version()}/site-packages"


def harnesses_image() -> Path:
    """Archive of it, made by the steps of `images/harnesses/Containerfile`."""
    agent = HARNESSES_MOUNT / "mini-swe-agent"

    def fill(layer: Layer) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / agent.name
            _assemble("copy", folder)
            site = MINI_SWE_AGENT / _PACKAGES
            shutil.copytree(site, folder / _PACKAGES, dirs_exist_ok=True, symlinks=True, ignore=_LEFT_OUT)
            _assemble("seal", folder, agent)
            layer.tree(folder, str(agent))
            layer.link(f"{HARNESSES_MOUNT}/bin/{agent.name}", f"../{agent.name}/bin/{agent.name}")

    image = Image(HARNESSES, command=(f"{HARNESSES_MOUNT}/bin/{agent.name}",), user="65532:65532")
    made_of = [*(MINI_SWE_AGENT / _PACKAGES).glob("*.dist-info"), _ASSEMBLE]
    return archived(image, fill, made_of=made_of)


def _assemble(step: str, folder: Path, *place: object) -> None:
    subprocess.run([sys.executable, _ASSEMBLE, step, folder, *map(str, place)], check=True)
