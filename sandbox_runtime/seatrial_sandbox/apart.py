"""Work on a file that an agent may have made, in a child that may crash, hang or run out of memory over it.

    server ── fork ──▶ child    reads and writes the file, with the caller's rights and less memory
           ◀─ pipe ──           one JSON object: what it answers, or why not

The child shares what the server has loaded, so it costs milliseconds. Nothing that it sends is executed. It cannot be
traced by what else runs in the sandbox, and holds none of the server's connections.
"""

import asyncio
import base64
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Never

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.complaints import explained
from seatrial_sandbox.privileges import hide_memory
from seatrial_sandbox.processes import readable

MAX_MEMORY_BYTES = 1024 * 1024 * 1024
"""Private memory that the child may take beyond what it shares with the server."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Longest answer that is taken from a child."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that a tool answers with."""

    data: bytes
    media_type: str = "image/png"


type Answer = str | Picture


class WorkFailedError(Exception):
    """The child failed in a way that no tool foresaw; the text names the kind."""


async def apart(work: Callable[[], Answer], seconds: float) -> Answer:
    """Do blocking work in a child.

    Args:
        work: Runs in a copy of this process: what it changes in memory is lost, what it writes to files stays.
        seconds: Time after which the child is killed.

    Raises:
        ToolError: As the work raised it, or because the child took too much time or memory.
        WorkFailedError: If the work raised anything else.
    """
    data, status = await _run(work, seconds)
    if not data and status == signal.SIGKILL:  # from without: by an agent that kills all it sees, or with its strays
        data, status = await _run(work, seconds)
    return _understood(data, status)


async def _run(work: Callable[[], Answer], seconds: float) -> tuple[bytes, int]:
    """What a child sent, and the signal that ended it.

    Raises:
        ToolError: If its time was up.
    """
    reading, writing = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child takes none of their locks
            pid = os.fork()
        if pid == 0:
            _be_child(work, writing)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while len(data) <= MAX_ANSWER_BYTES:
                await readable(reading)
                if not (chunk := os.read(reading, 1 << 16)):
                    await _exit_of(pid)  # whose end it was
                    break
                data += chunk
    except TimeoutError:
        raise ToolError(f"gave up after {seconds:g} s; ask for less at once") from None
    finally:
        os.close(reading)
        status = _end(pid)
    return bytes(data), status


async def _exit_of(pid: int) -> None:
    """Wait until a child has exited; it stays to be waited for."""
    with suppress(ProcessLookupError):  # cleared away already by whoever does that for the sandbox
        descriptor = os.pidfd_open(pid)
        try:
            await readable(descriptor)
        finally:
            os.close(descriptor)


def _end(pid: int) -> int:
    """End a child, if it has not; returns the signal that had ended it."""
    with suppress(ProcessLookupError):
        gone, status = _wait(pid, os.WNOHANG)
        if not gone:
            os.kill(pid, signal.SIGKILL)
            _wait(pid, 0)
            return 0
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return 0


def _wait(pid: int, options: int) -> tuple[int, int]:
    try:
        return os.waitpid(pid, options)
    except ChildProcessError:  # whoever clears away the sandbox's dead was faster
        return pid, 0


def _understood(data: bytes, status: int) -> Answer:
    try:
        answer = json.loads(data)
        match answer:
            case {"text": str(text)}:
                return text
            case {"picture": str(picture), "media_type": str(media_type)}:
                return Picture(base64.b64decode(picture), media_type)
            case {"error": str(error)}:
                raise ToolError(error)
            case {"fault": str(fault)}:
                raise WorkFailedError(fault)
            case _:
                pass
    except ValueError:
        pass
    if len(data) > MAX_ANSWER_BYTES:
        raise ToolError("the answer would be too large; ask for less at once")
    name = signal.Signals(status).name if status else "no answer"
    raise ToolError(f"reading the file broke the reader ({name}): it is damaged, or asks for too much memory")


def _be_child(work: Callable[[], Answer], writing: int) -> Never:
    try:
        hide_memory()
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)  # over which a server may speak with its client
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = _data_bytes() + MAX_MEMORY_BYTES
        if hard != resource.RLIM_INFINITY:
            bound = min(hard, bound)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
        _send(_answer(work), writing)
    finally:
        os._exit(0)


def _data_bytes() -> int:
    """Private memory that the process has mapped, as RLIMIT_DATA counts it; see proc_pid_statm(5)."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  a Path costs more than the fork
        return int(file.read().split()[5]) * resource.getpagesize()


def _answer(work: Callable[[], Answer]) -> dict[str, str]:
    try:
        match work():
            case Picture(data, media_type):
                return {"picture": base64.b64encode(data).decode(), "media_type": media_type}
            case text:
                return {"text": text}
    except (ToolError, OSError, MemoryError, RecursionError) as error:
        return {"error": explained(error)}
    except Exception as error:  # noqa: BLE001  the root of the process
        return {"fault": type(error).__name__}


def _send(answer: dict[str, str], writing: int) -> None:
    data = memoryview(json.dumps(answer).encode())
    while data:
        data = data[os.write(writing, data) :]
