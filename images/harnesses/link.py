# ruff: noqa: INP001  a script, not a module of a package
"""Puts the programs of installed agents where harnesses look for them.

link.py FOLDER     make FOLDER/bin, with a link to each program
"""

import sys
from pathlib import Path

_PROGRAMS = {
    "mini-swe-agent": "mini-swe-agent/bin/mini-swe-agent",
    "opencode": "node_modules/opencode-*/bin/opencode",
    "codex": "node_modules/@openai/codex-*/vendor/*/bin/codex",
    "claude": "node_modules/@anthropic-ai/claude-code-*/claude",
}


def link(folder: Path) -> None:
    """Make the links.

    Raises:
        ValueError: If a program is not there, or twice.
    """
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, place in _PROGRAMS.items():
        (program,) = folder.glob(place)
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(program.relative_to(programs, walk_up=True))


if __name__ == "__main__":
    link(Path(sys.argv[1]))
