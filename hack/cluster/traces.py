"""What a copy has on the machine besides processes: its folder, and on a node the cgroup that its pods are in."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from hack.cluster.layout import Layout

_CGROUPS = Path("/sys/fs/cgroup")
_WEIGHTS = {"cpu.shares": "16384", "cpu.weight": "1600"}
"""Of all pods together, where one process outside weighs 1024 or 100: else a busy machine starves them."""


def make_cgroups(layout: Layout) -> None:
    """One cgroup for the copy's pods, in each hierarchy: pods of different copies never meet."""
    for hierarchy in _hierarchies():
        cgroup = hierarchy / layout.folder.name
        cgroup.mkdir()
        for file, weight in _WEIGHTS.items():
            if (cgroup / file).exists():
                (cgroup / file).write_text(weight)


def remove(layout: Layout, *, keep_logs: bool = False) -> None:
    """Remove all that a copy left, once its processes have ended; harmless where nothing is."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / layout.folder.name, topdown=False):
            with suppress(FileNotFoundError):
                Path(folder).rmdir()
    if keep_logs:
        layout.state.unlink(missing_ok=True)
    else:
        shutil.rmtree(layout.folder, ignore_errors=True)


def _hierarchies() -> list[Path]:
    """Roots of all cgroup trees: one in version 2, one per controller in version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_mount()]
