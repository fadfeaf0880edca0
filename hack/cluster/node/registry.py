"""A registry on the node's loopback, where Debian's is installed: pods' images by name and digest, over plain HTTP."""

import json
import shutil

from hack.cluster.layout import INSIDE
from hack.cluster.processes import Command

ADDRESS = "127.0.0.1:5000"
_PROGRAM = "docker-registry"


def is_installed() -> bool:
    """Whether this machine has one."""
    return shutil.which(_PROGRAM) is not None


def registry() -> Command:
    """The registry, empty; writes what it reads."""
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": f"{INSIDE}/registry"}, "delete": {"enabled": True}},
        "http": {"addr": ADDRESS},
    }
    path = INSIDE / "registry.json"
    path.write_text(json.dumps(config))
    return Command("registry", (_PROGRAM, "serve", str(path)))
