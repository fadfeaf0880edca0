"""Long-running processes that live and die together."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hack.cluster.errors import StartError
from hack.cluster.layout import Layout
from seatrial_api.clock import SYSTEM_CLOCK, Deadline

_TAIL_CHARS = 2000
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Command:
    """A process to run."""

    name: str
    """Of its log."""
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own."""
    keep_open: tuple[int, ...] = ()
    """Descriptors that the process gets."""
    is_revived: bool = False
    """Whether it is started again when it is killed, as a kubelet does it with the parts of a control plane."""


class Processes:
    """Starts processes into one task group; one that ends by itself ends the group, and the group's end kills all.

    A process that is killed ends the group as well, unless its command says that it is started again.

    The kernel kills them too when we are killed, so that nothing outlives its runner.
    """

    def __init__(self, layout: Layout, group: asyncio.TaskGroup) -> None:
        self._layout = layout
        self._group = group

    async def start(self, command: Command) -> None:
        """Start a process; its output goes to its log."""
        process = await self._launch(command)
        self._group.create_task(self._watch(command, process), name=command.name)

    async def _launch(self, command: Command) -> asyncio.subprocess.Process:
        with self._layout.log(command.name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *dies_with_us(*command.words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | dict(command.env),
                pass_fds=command.keep_open,
            )
        self._layout.pid(command.name).write_text(str(process.pid))
        return process

    async def run(self, *words: str, stdin: str | None = None) -> str:
        """Run a command to its end and return what it wrote.

        Raises:
            StartError: if it fails, with what it said.
        """
        process = await asyncio.create_subprocess_exec(
            *dies_with_us(*words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(None if stdin is None else stdin.encode())
        if process.returncode != 0:
            raise StartError(f"`{' '.join(words)}` ended with {process.returncode}: {err.decode().strip()}")
        return out.decode()

    async def _watch(self, command: Command, process: asyncio.subprocess.Process) -> None:
        while (status := await _end_of(process)) == -signal.SIGKILL and command.is_revived:
            process = await self._launch(command)
        raise StartError(f"{command.name} ended with {status}:\n{tail(self._layout.log(command.name))}")


async def _end_of(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def dies_with_us(*words: str) -> tuple[str, ...]:
    """The command, killed by the kernel when its parent ends."""
    return ("setpriv", "--pdeathsig", "KILL", "--", *words)


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-_TAIL_CHARS:]


async def until(condition: Callable[[], bool], *, what: str, deadline: Deadline) -> None:
    """Ask again and again, in a thread, whether something is so.

    Raises:
        WaitTimeoutError: if the deadline passes first.
    """
    while not await asyncio.to_thread(condition):
        deadline.check(what)
        await SYSTEM_CLOCK.sleep(_POLL_SECONDS)
