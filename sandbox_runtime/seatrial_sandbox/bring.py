"""`python -m seatrial_sandbox.bring SOURCE=TARGET ...`: copy what folders hold into others, as an init container does.

The world's image need have no program for that. Targets belong to others (they are volumes): only what is in them is
made, and what lies there already stays. What is mounted below a source is not of it.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from seatrial_sandbox.layout import HOME

_SHOWN = 10


def bring(source: Path, target: Path) -> list[str]:
    """Copy the content of a folder into another; returns what could not be copied, and why."""
    failures: list[str] = []

    def mounted(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if (path := Path(folder, name)).is_dir() and path.is_mount()]

    target.mkdir(parents=True, exist_ok=True)
    left_out = mounted(str(source), [entry.name for entry in source.iterdir()])
    for entry in sorted(entry for entry in source.iterdir() if entry.name not in left_out):
        try:
            if entry.is_dir() and not entry.is_symlink():
                shutil.copytree(entry, target / entry.name, symlinks=True, ignore=mounted, dirs_exist_ok=True)
            else:
                shutil.copy2(entry, target / entry.name, follow_symlinks=False)
        except shutil.Error as error:
            failures += [f"{path}: {reason}" for path, _, reason in error.args[0]]
        except OSError as error:
            failures.append(f"{entry}: {error}")
    return failures


def identify(folder: Path, etc: Path = Path("/etc")) -> None:
    """Write the image's lists of users and groups into a folder, with a name for who runs this.

    Programs that ask for a user's home by its number do badly without.
    """
    user, group = os.getuid(), os.getgid()
    lines = {"passwd": f"agent:x:{user}:{group}:agent:{HOME}:/bin/sh\n", "group": f"agent:x:{group}:\n"}
    for name, line in lines.items():
        known = (etc / name).read_text(errors="surrogateescape") if (etc / name).is_file() else ""
        if known and not known.endswith("\n"):
            known += "\n"
        (folder / name).write_text(known + line, errors="surrogateescape")


def main() -> str | None:
    """Copy; returns what to say if that failed."""
    parser = argparse.ArgumentParser(prog="bring", description="Copy what folders hold into others.")
    parser.add_argument("pairs", nargs="+", metavar="SOURCE=TARGET")
    parser.add_argument("--if-there", action="store_true", help="a source that is not there is no mistake")
    parser.add_argument("--identity", type=Path, metavar="FOLDER", help="where to write passwd and group as well")
    arguments = parser.parse_args()
    failures: list[str] = []
    if arguments.identity is not None:
        identify(arguments.identity)
    for pair in arguments.pairs:
        source, target = (Path(part) for part in pair.split("=", 1))
        if source.is_dir():
            failures += bring(source, target)
        elif source.exists() or not arguments.if_there:
            failures.append(f"{source}: the image has no such folder")
    if not failures:
        return None
    more = len(failures) - _SHOWN
    return "\n".join(
        ["not everything can be copied (as the sandbox's user, which is never root):", *failures[:_SHOWN]]
        + ([f"and {more} more"] if more > 0 else [])
    )


if __name__ == "__main__":
    sys.exit(main())
