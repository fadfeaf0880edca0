"""Running a command whose output is handed on while it runs."""

import asyncio
import os
import select
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from seatrial_api.clock import Deadline
from seatrial_sandbox.processes import Command, Process, ProcessTable

_CHUNK_BYTES = 1 << 16
_LAST_CHUNKS = 64


class Stream(StrEnum):
    """Where a command writes."""

    STDOUT = "stdout"
    STDERR = "stderr"


type Emit = Callable[[Stream, bytes], Awaitable[None]]
"""Takes output; while it waits, so does the command."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    return_code: int
    """Exit status; negative for the signal that ended it."""
    timed_out: bool
    dropped: dict[Stream, int]
    """Bytes beyond the budget, which were not handed on."""


async def stream(command: Command, table: ProcessTable, emit: Emit, *, leave_nothing: bool = False) -> Ended:
    """Run a command in a session of its own until it exits; cancelling kills its whole tree.

    Args:
        command: What to run; of each output its `max_bytes` are handed on, the rest is read and counted.
        table: The processes among which to kill.
        emit: Takes the output.
        leave_nothing: Whether what it left in the background is killed too when it exits by itself.

    Raises:
        OSError: If the command cannot be started.
    """
    pipes = [_Pipe(name, command.max_bytes) for name in Stream]
    try:
        process = Process.start(command, table, *(pipe.write_end for pipe in pipes))
    except BaseException:
        for pipe in pipes:
            pipe.close()
        raise
    exited = os.pidfd_open(process.pid)
    timed_out = False
    try:
        for pipe in pipes:
            pipe.listen()
        timed_out = not await _pump(pipes, exited, emit, command.timeout_seconds)
    finally:
        os.close(exited)
        return_code = process.end(kill=timed_out or leave_nothing)
        for pipe in pipes:
            pipe.close()
    return Ended(return_code, timed_out, {pipe.name: pipe.dropped for pipe in pipes})


@dataclass(slots=True)
class _Pipe:
    """One output of a command."""

    name: Stream
    budget: int
    dropped: int = 0
    read_end: int = -1
    write_end: int = -1

    def __post_init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def listen(self) -> None:
        """Let go of the writing end, which the command holds from here on."""
        os.close(self.write_end)
        self.write_end = -1

    async def hand_on(self, emit: Emit) -> bool:
        """Read once and hand on what the budget allows; returns whether anything was there."""
        if self.read_end < 0:
            return False
        try:
            data = os.read(self.read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        kept = data[: self.budget]
        self.budget -= len(kept)
        self.dropped += len(data) - len(kept)
        if kept:
            await emit(self.name, kept)
        return True

    def close(self) -> None:
        for end in (self.read_end, self.write_end):
            if end >= 0:
                os.close(end)
        self.read_end = self.write_end = -1


async def _pump(pipes: list[_Pipe], exited: int, emit: Emit, timeout_seconds: float | None) -> bool:
    """Hand on output until the command has exited; returns whether it did so in time."""
    deadline = None if timeout_seconds is None else Deadline.after(timeout_seconds)
    while await _any_readable([exited, *(pipe.read_end for pipe in pipes if pipe.read_end >= 0)], deadline):
        for pipe in pipes:
            await pipe.hand_on(emit)
        if _is_readable(exited):
            for pipe in pipes:  # a process in the background may go on writing for ever
                for _ in range(_LAST_CHUNKS):
                    if not await pipe.hand_on(emit):
                        break
            return True
        if deadline is not None and deadline.remaining <= 0:
            return False
    return False


async def _any_readable(descriptors: list[int], deadline: Deadline | None) -> bool:
    """Wait until one of some descriptors can be read; false if the deadline came first."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        for descriptor in descriptors:  # at once: while the output is handed on, nothing must spin
            loop.remove_reader(descriptor)
        if not ready.done():
            ready.set_result(None)

    for descriptor in descriptors:
        loop.add_reader(descriptor, wake)
    try:
        async with asyncio.timeout(None if deadline is None else deadline.remaining):
            await ready
    except TimeoutError:
        return False
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
    return True


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
