"""Programs of this machine's system for an image, with the libraries that they need."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import batched
from pathlib import Path

from hack.cluster.images.archive import Layer

# `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x...)`, and the loader, which stands alone.
_LIBRARY = re.compile(r"(?:=> |^\s+)(/(?:usr/)?lib\S*)", re.MULTILINE)

_SHELL = """
    bash sh env cat ls grep sed awk wget ps sleep mkdir rmdir rm cp mv ln id hostname date head tail tr cut sort uniq wc
    tee xargs find touch chmod chown stat readlink realpath dirname basename uname df du kill true false test expr seq
    nproc lscpu free tar gzip mktemp setsid timeout diff whoami which mount umount setpriv unshare bwrap
"""


def system(layer: Layer) -> None:
    """Users, name service, and the programs that scripts expect; those that this machine lacks are left out."""
    layer.link("bin", "usr/bin")
    layer.text("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nseatrial:x:1000:1000::/home/seatrial:/bin/bash\n")
    layer.text("etc/group", "root:x:0:\nseatrial:x:1000:\n")
    layer.text("etc/nsswitch.conf", "hosts: files dns\n")
    layer.folder("home/seatrial", 0o777)
    programs: list[Path] = []
    for name in _SHELL.split():
        if program := shutil.which(name):
            layer.file(Path(program), f"usr/bin/{name}")
            programs.append(Path(program))
    libraries(layer, programs)


def libraries(layer: Layer, binaries: Iterable[Path]) -> None:
    """Those of the system's libraries that programs or libraries need."""
    for some in batched(binaries, 100):
        # Scripts and static programs have none, which is an error to ldd.
        told = subprocess.run(["ldd", *some], capture_output=True, text=True, check=False)
        for library in sorted(set(_LIBRARY.findall(told.stdout))):
            layer.file(Path(library), library)
