"""Archives that were made once and are still of what they were made of."""

import fcntl
from collections.abc import Callable, Iterable
from pathlib import Path

from hack.cluster.images.archive import Image, Layer, write_archive
from hack.cluster.layout import CACHE

_HOW = [*Path(__file__).parent.glob("*.py")]


def archived(image: Image, fill: Callable[[Layer], None], *, made_of: Iterable[Path]) -> Path:
    """The image's archive; written anew only if one of the files, or how images are made, is younger than it.

    One process makes it while others wait: a node that is given two makes of one image knows neither well.
    """
    path = CACHE / "images" / f"{image.name.replace('/', '_').replace(':', '_')}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or any(file.stat().st_mtime > path.stat().st_mtime for file in (*made_of, *_HOW)):
            write_archive(path, image, fill)
    return path
