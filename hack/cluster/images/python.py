"""This interpreter and installed packages for an image."""

import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from hack.cluster.images.archive import Layer
from hack.cluster.images.system import libraries

PREFIX = "usr/local"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = ("test", "idlelib", "ensurepip", "tkinter", "turtledemo", "*-packages", "config-*", "lib-dynload/_tkinter*")
"""Of the standard library: what runs no service, and what makes it many times as large."""


def interpreter(layer: Layer) -> None:
    """Interpreter and standard library below /usr/local, and found where virtual environments look for them."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    shared = [part for part in [_shared_library()] if part.suffix != ".a" and part.exists()]
    left_out = [path.name for pattern in _LEFT_OUT for path in library.glob(pattern)]
    layer.file(program, f"{PREFIX}/bin/{_VERSION}")
    for name in ("python3", "python"):
        layer.link(f"{PREFIX}/bin/{name}", _VERSION)
    for part in shared:
        layer.file(part, f"{PREFIX}/lib/{part.name}")
    layer.tree(library, f"{PREFIX}/lib/{_VERSION}", leave_out=left_out)
    extensions = [part for part in library.glob("lib-dynload/*.so") if part.name not in left_out]
    libraries(layer, [program, *shared, *extensions])
    home = Path(sys.base_prefix)
    if not home.is_relative_to("/usr"):
        layer.link(str(home), f"/{PREFIX}")


def installed() -> list[Path]:
    """What was written when packages were installed, and by nothing that imports or compiles them."""
    return [*Path(sysconfig.get_path("purelib")).glob("*.dist-info")]


def _shared_library() -> Path:
    """The interpreter's body, where it is a library; where it is not, the name ends in `.a`."""
    return Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))


def packages(layer: Layer, *names: str, prefix: str = PREFIX) -> None:
    """Installed distributions with all that they need, in exactly the installed versions."""
    site = f"{prefix}/lib/{_VERSION}/site-packages"
    parts: dict[str, Distribution] = {}
    for name in names:
        _collect(name, (), parts)
    files = {str(file): Path(str(file.locate())) for part in parts.values() for file in part.files or ()}
    for name, source in files.items():
        if source.suffix != ".pth" and not name.startswith(".."):  # beside the packages: scripts that name a place here
            layer.file(source, f"{site}/{name}")
    for part in parts.values():
        for source in _edited_here(part):
            layer.tree(source, f"{site}/{source.name}", leave_out=["__pycache__"])
    if prefix == PREFIX:  # elsewhere is an interpreter that brings its own
        libraries(layer, [source for source in files.values() if source.suffix == ".so"])


def _collect(name: str, extras: Iterable[str], found: dict[str, Distribution]) -> None:
    """A distribution and, through their requirements, all that it needs."""
    part = distribution(name)
    found[part.name] = part
    environments = [{"extra": extra} for extra in ("", *extras)]
    for line in part.requires or ():
        needed = Requirement(line)
        applies = needed.marker is None or any(needed.marker.evaluate(environment) for environment in environments)
        if applies and (needed.extras or distribution(needed.name).name not in found):
            _collect(needed.name, needed.extras, found)


def _edited_here(part: Distribution) -> Iterator[Path]:
    """Packages of a distribution that is installed as a link to its sources."""
    told = part.read_text("direct_url.json")
    if told is not None and json.loads(told).get("dir_info", {}).get("editable"):
        folder = Path(urlsplit(json.loads(told)["url"]).path)
        yield from (init.parent for init in folder.glob("*/__init__.py"))
