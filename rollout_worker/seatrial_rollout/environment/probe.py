"""What isolation this machine allows: found out by doing it once."""

import errno
import os
import subprocess
import tempfile
from pathlib import Path

from seatrial_rollout.environment.enclosure import Enclosure
from seatrial_rollout.environment.isolation import Isolation, Means, bwrap_arguments, identity_files
from seatrial_sandbox.errors import SandboxStartError

_NAMESPACES = {
    "mount": os.CLONE_NEWNS,
    "PID": os.CLONE_NEWPID,
    "network": os.CLONE_NEWNET,
    "IPC": os.CLONE_NEWIPC,
    "UTS": os.CLONE_NEWUTS,
}
_USER_NAMESPACE_HINT = (
    "look at the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and"
    " kernel.apparmor_restrict_unprivileged_userns, or at the container's seccomp profile"
)
_PROBE_UID = (1 << 30) - 1


def available_means(isolation: Isolation) -> tuple[Means, str]:
    """The best means that work here, and why none better did.

    Args:
        isolation: What is asked for.

    Returns:
        The means; for plain processes that nobody asked for, the reason.
    """
    if isolation is Isolation.PLAIN:
        return Means.PLAIN, ""
    candidates = [Means.ROOT, Means.USER_NAMESPACE] if os.geteuid() == 0 else [Means.USER_NAMESPACE]
    reasons = []
    for means in candidates:
        reason = _try(means)
        if not reason:
            return means, ""
        reasons.append(
            f"{reason} ({refused_namespaces(means) or 'the kernel refuses none of the namespaces by itself'})"
        )
    return Means.PLAIN, "; ".join(reasons)


def refused_namespaces(means: Means) -> str:
    """Which namespaces the kernel refuses, each asked for by itself; empty if it refuses none."""
    within = os.CLONE_NEWUSER if means is Means.USER_NAMESPACE else 0
    if within and (refusal := _unshare(within)):
        return f"the kernel refuses user namespaces: {refusal}; {_USER_NAMESPACE_HINT}"
    refusals = {name: _unshare(within | flag) for name, flag in _NAMESPACES.items()}
    return "; ".join(
        f"the kernel refuses {name} namespaces: {refusal}" for name, refusal in refusals.items() if refusal
    )


def _unshare(flags: int) -> str:
    """What the kernel says to a child that leaves these namespaces; nothing if it lets it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.unshare(flags)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return f"{errno.errorcode.get(code, code)}, {os.strerror(code)}" if code else ""


def _try(means: Means) -> str:
    """Enter a sandbox in a child and run something there; returns what went wrong."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryDirectory(prefix="seatrial-probe-") as folder:
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            os.write(write_end, _attempt(means, Path(folder)).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as reading:
            reason = reading.read().decode(errors="replace")
        os.waitpid(pid, 0)
    return reason


def _attempt(means: Means, folder: Path) -> str:
    try:
        for name, text in identity_files(_PROBE_UID).items():
            (folder / name).write_text(text)
        enclosure = Enclosure.open(bwrap_arguments(means, {}, folder))
        enclosure.enter(means, _PROBE_UID if means is Means.ROOT else None)
        subprocess.run(["/bin/bash", "-c", "test ! -w /"], check=True, env={})
        enclosure.close()
    except (OSError, SandboxStartError, subprocess.SubprocessError) as error:
        return f"{means}: {error}"
    return ""
