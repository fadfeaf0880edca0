"""What an image holds, installed from its lock into an environment of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

from hack.cluster.layout import ROOT

UV = shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")
"""`make install` brings it, if it is not there."""


def image_python(image: str, folder: Path, *, is_compiled: bool = False) -> Path:
    """Make the environment in `folder`; returns its interpreter, for which our own packages are still to be found.

    Args:
        image: Name of the image.
        folder: Where nothing is yet.
        is_compiled: Whether to compile the packages now, as the image's build does, and not when they are imported.

    Raises:
        RuntimeError: if it cannot be made, with what uv said.
    """
    python = folder / "bin" / "python"
    lock = ROOT / "images" / image / "requirements.lock"
    _run("venv", "--python", sys.executable, str(folder))
    options = ["--compile-bytecode"] if is_compiled else []
    _run("pip", "sync", "--python", str(python), "--require-hashes", *options, str(lock))
    return python


def _run(*command: str) -> None:
    done = subprocess.run([UV, "--quiet", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
