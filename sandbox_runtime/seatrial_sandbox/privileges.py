"""Giving up privileges for good."""

import ctypes
import os

from seatrial_sandbox.syscalls import filter_calls

_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def drop_privileges(uid: int | None) -> None:
    """Become another user if asked, without any capability, and deny them and dangerous calls to all children.

    Args:
        uid: User to become; needs root.

    Raises:
        OSError: If the kernel refuses.
    """
    if uid is not None:
        _become(uid)
    _set_capabilities(0)
    filter_calls()


def drop_to_reader(uid: int) -> None:
    """Become another user that may read what root can, but write, signal and trace only what is its own.

    Where root itself may not read everything (a container), nothing is kept.

    Args:
        uid: User to become.

    Raises:
        OSError: If the kernel refuses.
    """
    _prctl(_PR_SET_KEEPCAPS, 1)
    _become(uid)
    try:
        _set_capabilities(1 << _CAP_DAC_READ_SEARCH)
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH)
    except OSError:
        _set_capabilities(0)
    filter_calls()


def become_subreaper() -> None:
    """Have every orphan below come back to this process, so that it finds all that it has started."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep processes of the same user from tracing this one and from reading its memory, environment and files."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _set_capabilities(low: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable: 32 bits each, then the upper halves.
    sets = (ctypes.c_uint32 * 6)(low, low, low, 0, 0, 0)
    if _libc.capset(header, sets):
        raise _last_error("capset")


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *padded):
        raise _last_error("prctl")


def _last_error(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")
