"""Installs the agents behind the token-exact proxy as the image `images/harnesses` holds them, for local sandboxes.

    python hack/install_harnesses.py /opt/seatrial-harnesses

For tests the folder is `.cache/harnesses`. A harness looks below the folder that `SEATRIAL_HARNESSES` names.
`terminus-2` is a part of Harbor and needs nothing but tmux in the sandbox.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

_IMAGE = Path(__file__).parents[1] / "images" / "harnesses"


def main() -> None:
    """Install them, in the versions that are locked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    agent = folder / "mini-swe-agent"
    _run("uv", "venv", "--quiet", "--clear", "--python", sys.executable, agent)
    lock = _IMAGE / "requirements.lock"
    _run("uv", "pip", "sync", "--quiet", "--python", agent / "bin" / "python", "--require-hashes", lock)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_IMAGE / name, folder)
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder)
    _run(sys.executable, _IMAGE / "link.py", folder)


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
