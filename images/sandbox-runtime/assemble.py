# ruff: noqa: INP001  a script, not a module of a package
"""A Python that takes nothing from the system below it, so that it starts in any container, an empty one included.

    assemble.py copy FOLDER     copy the interpreter that runs this, and its standard library
    (install packages into FOLDER/lib/python3.x/site-packages)
    assemble.py seal FOLDER [PLACE]     bring the C library and all others along, and have them found there alone

It has to lie at PLACE (/opt/seatrial) when it runs: the kernel looks for a program's loader at a fixed place. All else
is found relative to the program. Needs `patchelf`, and `ldd` of a glibc that is younger than 2.34.
"""

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

_PLACE = Path("/opt/seatrial")
_LOADER = "ld.so"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_NOT_COPIED = shutil.ignore_patterns(
    *("test", "tests", "idlelib", "ensurepip", "tkinter", "_tkinter*", "turtledemo", "pydoc_data", "lib2to3"),
    *("config-*", "*-packages", "__pycache__"),
)
_LOADED_BY_NAME = ("libgcc_s.so.1",)
"""What the C library loads without saying so beforehand."""
_SCRIPT = """\
#!{python} -I
import sys
from {module} import {function}
sys.exit({function}())
"""
_SCRIPTS = {
    "seatrial-mcp": ("seatrial_sandbox.__main__", "main"),
    "sandboxd": ("seatrial_sandbox.daemon.__main__", "main"),
    "mini-swe-agent": ("minisweagent.run.mini", "app"),
}
"""Programs in Python, as far as their package is there."""
# `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x...)`, or `=> not found`.
_LIBRARY = re.compile(r"^\s+(\S+) => (/\S+|not found)", re.MULTILINE)


def copy(folder: Path) -> None:
    """Copy interpreter and standard library, without what no service runs."""
    program = Path(sys.executable).resolve()
    (folder / "bin").mkdir(parents=True)
    shutil.copy2(program, folder / "bin" / _VERSION)
    for name in ("python3", "python"):
        (folder / "bin" / name).symlink_to(_VERSION)
    library = folder / "lib" / _VERSION
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_NOT_COPIED)
    (library / "site-packages").mkdir(exist_ok=True)


def seal(folder: Path, place: Path = _PLACE) -> None:
    """Bring the libraries along and have every file of the folder use them; compile all of Python's.

    Args:
        folder: The folder.
        place: Where it lies when it runs.

    Raises:
        SystemExit: If a library is not to be had.
    """
    program = folder / "bin" / _VERSION
    binaries = [program, *_shared_objects(folder)]
    loader = Path(_patch("--print-interpreter", program))
    shutil.copy2(loader, folder / "lib" / _LOADER)
    (folder / "lib" / loader.name).symlink_to(_LOADER)
    for library in _libraries(binaries):
        if not library.is_relative_to(folder) and not (folder / "lib" / library.name).exists():
            shutil.copy2(library, folder / "lib" / library.name)
    for binary in [program, *_shared_objects(folder)]:
        _strip(binary)  # before it is patched: afterwards strip would break it
        _look_here_first(binary)
    _patch("--set-interpreter", str(place / "lib" / _LOADER), program)
    _patch("--force-rpath", "--set-rpath", "$ORIGIN/../lib", program)
    for path in (folder / "bin").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not _is_elf(path):
            path.unlink()  # scripts of packages name the interpreter that installed them
    packages = folder / "lib" / _VERSION / "site-packages"
    for name, (module, function) in _SCRIPTS.items():
        if (packages / module.partition(".")[0]).is_dir():
            script = folder / "bin" / name
            script.write_text(_SCRIPT.format(python=place / "bin" / "python3", module=module, function=function))
            script.chmod(0o755)
    compileall.compile_dir(
        folder / "lib" / _VERSION,
        force=True,
        quiet=2,
        stripdir=str(folder),
        prependdir=str(place),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,  # it is read-only, whatever its times are
        workers=0,
    )


def _strip(binary: Path) -> None:
    """Leave out what only a debugger reads, where there is a tool for that."""
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", binary], check=True)


def _look_here_first(binary: Path) -> None:
    """Keep only relative places, of the kind that goes before `LD_LIBRARY_PATH` and adds to the program's own."""
    if binary.name.startswith(("ld.so", "libc.so")):
        return
    places = [place for place in _patch("--print-rpath", binary).split(":") if place.startswith("$ORIGIN")]
    if places:
        _patch("--force-rpath", "--set-rpath", ":".join(places), binary)
    else:
        _patch("--remove-rpath", binary)


def _libraries(binaries: Iterable[Path]) -> Iterator[Path]:
    """Files of the system that these need."""
    for binary in binaries:
        told = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
        for name, path in _LIBRARY.findall(told):
            if path == "not found":
                sys.exit(f"{binary} needs {name}, which is not here; install it")
            yield Path(path)
            yield from (extra for by_name in _LOADED_BY_NAME if (extra := Path(path).parent / by_name).exists())


def _shared_objects(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    return [path for path in found if _is_elf(path)]


def _is_elf(path: Path) -> bool:
    with path.open("rb") as content:
        return content.read(4) == b"\x7fELF"


def _patch(*words: str | Path) -> str:
    program = shutil.which("patchelf", path=str(Path(sys.executable).parent)) or "patchelf"
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"patchelf {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    {"copy": copy, "seal": seal}[sys.argv[1]](*(Path(argument).absolute() for argument in sys.argv[2:]))
