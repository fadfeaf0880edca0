"""A filter of system calls, which no child gets rid of: what programs do not need and escapes do.

Where no capabilities are left, most of these calls fail anyway. The filter is for the rest: user namespaces, in which
anybody is root of a large part of the kernel; keyrings, which belong to users rather than sandboxes; sockets of the
hypervisor, which know no network namespaces; and corners of the kernel that were escaped through before.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator, Sequence

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS: a word of the call's record
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ
_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET
_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE
_RETURN = 0x06  # BPF_RET
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000  # with an error number in its lower half
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the record

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below, and the kernel's name of the architecture."""
_X32 = 0x40000000
"""Numbers from here on are those of another way to call x86."""

_REFUSED: Sequence[tuple[int, int]] = (
    *((272, 97), (308, 268)),  # unshare, setns
    *((165, 40), (166, 39), (155, 41), (428, 428), (429, 429)),  # mount, umount2, pivot_root, open_tree, move_mount
    *((430, 430), (431, 431), (432, 432), (433, 433)),  # fsopen, fsconfig, fsmount, fspick
    *((442, 442), (179, 60)),  # mount_setattr, quotactl
    *((248, 217), (249, 218), (250, 219)),  # add_key, request_key, keyctl
    *((321, 280), (298, 241), (323, 282)),  # bpf, perf_event_open, userfaultfd
    *((425, 425), (426, 426), (427, 427)),  # io_uring_setup, io_uring_enter, io_uring_register
    *((175, 105), (313, 273), (176, 106)),  # init_module, finit_module, delete_module
    *((246, 104), (320, 294), (169, 142)),  # kexec_load, kexec_file_load, reboot
    *((304, 265), (438, 438), (312, 272)),  # open_by_handle_at, pidfd_getfd, kcmp
    *((103, 116), (163, 89), (167, 224), (168, 225)),  # syslog, acct, swapon, swapoff
)
"""Numbers of calls that fail with EPERM, whatever they ask."""
_CLONE3 = (435, 435)
"""Fails as if there were none: what it asks lies in memory, which a filter cannot read. Programs do without."""
_CLONE, _SOCKET, _PTRACE, _READ_OTHER, _WRITE_OTHER = (56, 220), (41, 198), (101, 117), (310, 270), (311, 271)
_NAMESPACE_BITS = 0x7E020000
_AF_ALG, _AF_VSOCK = 38, 40

type _Instruction = tuple[int, int, int, int]
"""Code, how many to skip if so, how many if not, value."""

_libc = ctypes.CDLL(None, use_errno=True)


def filter_calls() -> None:
    """Refuse this process and all below it, for good, the calls listed above; it gains no privileges from here on.

    Raises:
        OSError: If the kernel has no filters, or does not know this machine's calls.
    """
    program = _program()
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    instructions = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions)))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(head))


def _program() -> list[_Instruction]:
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOTSUP, f"the system calls of {machine} are not known")
    column, architecture = _MACHINES[machine]
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
        *_fail(_IF_AT_LEAST, _X32, errno.ENOSYS),
        *_fail(_IF_EQUAL, _CLONE3[column], errno.ENOSYS),
        *(one for numbers in _REFUSED for one in _fail(_IF_EQUAL, numbers[column], errno.EPERM)),
        *_fail_if(_CLONE[column], 0, _IF_ANY_BIT, (_NAMESPACE_BITS,)),
        *_fail_if(_SOCKET[column], 0, _IF_EQUAL, (_AF_ALG, _AF_VSOCK)),
        *_fail_if(_PTRACE[column], 1, _IF_EQUAL, (1,)),  # whatever is done to process 1 ends the sandbox
        *_fail_if(_READ_OTHER[column], 0, _IF_EQUAL, (1,)),
        *_fail_if(_WRITE_OTHER[column], 0, _IF_EQUAL, (1,)),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _fail(test: int, value: int, error: int) -> Iterator[_Instruction]:
    """Fail if the word at hand passes a test."""
    yield (test, 0, 1, value)
    yield (_RETURN, 0, 0, _FAIL | error)


def _fail_if(number: int, argument: int, test: int, values: Sequence[int]) -> Iterator[_Instruction]:
    """Fail a call whose argument, of which the lower half is looked at, passes a test with one of some values."""
    tests = [one for value in values for one in _fail(test, value, errno.EPERM)]
    yield (_IF_EQUAL, 0, len(tests) + 2, number)
    yield (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
    yield from tests
    yield (_RETURN, 0, 0, _ALLOW)


def _prctl(option: int, value: int, more: int) -> None:
    if _libc.prctl(option, *(ctypes.c_ulong(one) for one in (value, more, 0, 0))):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")
