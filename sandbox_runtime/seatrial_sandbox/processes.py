"""Commands and all the processes that they leave: started, watched and killed as one tree."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from seatrial_sandbox.limits import Limits
from seatrial_sandbox.text import HeadTail

_MARK = "SEATRIAL_COMMAND"
_KILL_ROUNDS = 50
_END_MILLISECONDS = 100
_SHOWN_NAMES = 10
_EXITING = 0x4  # the kernel's PF_EXITING


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left behind."""

    return_code: int
    """Exit status; negative for the signal that ended it."""
    stdout: HeadTail
    stderr: HeadTail
    """Empty where stderr was merged into stdout."""
    timed_out: bool = False
    """Whether it was killed because its time was up."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    timeout_seconds: float | None = None
    max_bytes: int = 1_000_000
    """Bytes kept of each output."""
    merge_stderr: bool = False
    limits: Limits | None = None
    """Put upon it, and all that it has started by then, in the moment after its start."""


@dataclass(slots=True)
class ProcessTable:
    """The processes that a procfs shows.

    It holds its procfs open, so that one taken before a mount namespace is entered still shows, and can kill,
    what runs in PID namespaces below.
    """

    proc: int = field(default_factory=lambda: os.open("/proc", os.O_RDONLY | os.O_DIRECTORY))
    reaper: int | None = None
    """The process that orphans come to, where that is known: one that has shed every mark is then a stray."""
    inside: int | None = None
    """The procfs of the sandbox's PID namespace, if it has one: it shows the first process and what is to be killed."""
    owned: set[int] = field(default_factory=set)
    """Children that this process has started and waits for."""
    marks: set[bytes] = field(default_factory=set)
    """Marks that commands were given."""

    def tree(self, leader: int, mark: bytes) -> set[int]:
        """A session leader's session, its descendants, and every process that inherited its mark."""
        parents: dict[int, int] = {}
        found = set()
        for entry in os.listdir(self.proc):  # noqa: PTH208  by descriptor
            if not entry.isdigit():
                continue
            pid = int(entry)
            try:
                # The name in parentheses may hold anything; state, parent, group and session follow it.
                facts = self.read(f"{pid}/stat").rpartition(b")")[2].split()
                if facts[0] == b"Z":
                    continue
                parents[pid] = int(facts[1])
                if int(facts[3]) == leader or mark in self.read(f"{pid}/environ").split(b"\0"):
                    found.add(pid)
            except OSError:  # ended meanwhile, or not ours
                continue
        return found | {pid for pid in parents if self._descends(pid, leader, parents)}

    def descendants(self, ancestor: int) -> set[int]:
        """Every living process below another."""
        return self.tree(ancestor, b"\0") - {ancestor}

    def family(self, ancestor: int) -> set[int]:
        """Every living process below another, found from above, so that it does not matter how many run elsewhere.

        One whose sibling ends at this moment may be missed: to end them all, look at all processes.
        """
        found: set[int] = set()
        unseen = self.children(ancestor)
        while unseen:
            pid = unseen.pop()
            if pid not in found and not self.is_ending(pid):
                found.add(pid)
                unseen += self.children(pid)
        return found

    def names(self, pids: Iterable[int]) -> list[str]:
        """What processes call themselves; those that have ended are left out."""
        names = []
        for pid in pids:
            with suppress(OSError):
                names.append(self.read(f"{pid}/comm").decode(errors="replace").strip())
        return names

    def is_ending(self, pid: int) -> bool:
        """Whether a process was killed, though it may still hold what it had open."""
        try:
            facts = self.read(f"{pid}/stat").rpartition(b")")[2].split()
        except OSError:
            return True
        return facts[0] in {b"Z", b"X"} or bool(int(facts[6]) & _EXITING)

    def new_mark(self) -> dict[str, str]:
        """An addition to a child's environment that all below it inherit, and by which it is known as one of ours."""
        token = uuid.uuid4().hex
        self.marks.add(f"{_MARK}={token}".encode())
        return {_MARK: token}

    def strays(self) -> set[int]:
        """Orphans that bear no mark of ours, with all below them: what tried to be nobody's."""
        if self.reaper is None:
            return set()
        parents = self._parents()
        roots = {pid for pid, parent in parents.items() if parent == self.reaper and pid not in self.owned}
        unmarked = {pid for pid in roots if not self._is_marked(pid)}
        return {pid for pid in parents if any(self._descends(pid, root, parents) for root in unmarked)}

    def kill(self, leader: int, mark: bytes = b"\0") -> None:
        """Kill a whole tree, strays, and what they fork meanwhile."""
        dead: set[int] = set()
        for _ in range(_KILL_ROUNDS):
            if self._is_deserted():
                break
            victims = (self.tree(leader, mark) | self.strays()) - {os.getpid()}
            if not victims:
                break
            for pid in victims:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            dead |= victims
            _await_end(victims)
        self.bury(dead)

    def _is_deserted(self) -> bool:
        """Whether only the first process of the sandbox is left; saves a look at all processes of the machine."""
        return self.inside is not None and sum(name.isdigit() for name in os.listdir(self.inside)) <= 1  # noqa: PTH208

    def bury(self, dead: Iterable[int]) -> None:
        """Let dead orphans go that have come to this process; what it started itself is waited for elsewhere."""
        for pid in set(dead) - self.owned:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def zombies(self) -> set[int]:
        """Dead orphans that wait for this process, which did not start them."""
        return {pid for pid in self._parents(dead=True) if pid not in self.owned}

    def _parents(self, *, dead: bool = False) -> dict[int, int]:
        """Parent of every living process, or of this process's dead children."""
        parents = {}
        for entry in os.listdir(self.proc):  # noqa: PTH208  by descriptor
            if entry.isdigit():
                with suppress(OSError):
                    facts = self.read(f"{entry}/stat").rpartition(b")")[2].split()
                    if (facts[0] == b"Z") is dead and (not dead or int(facts[1]) == os.getpid()):
                        parents[int(entry)] = int(facts[1])
        return parents

    def _is_marked(self, pid: int) -> bool:
        try:
            return not self.marks.isdisjoint(self.read(f"{pid}/environ").split(b"\0"))
        except OSError:  # it hides its environment
            return False

    def children(self, pid: int) -> list[int]:
        """What a process has started, and what has come to it."""
        found = []
        with suppress(OSError):
            for task in self.read_names(f"{pid}/task"):
                found += [int(child) for child in self.read(f"{pid}/task/{task}/children").split()]
        return found

    def end(self, pid: int) -> None:
        """Kill one process, if it is still there."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

    def read_names(self, name: str) -> list[str]:
        """Names in a folder of this procfs.

        Raises:
            OSError: If the process has ended.
        """
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
        try:
            return os.listdir(descriptor)  # noqa: PTH208  by descriptor
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        """A file of this procfs.

        Raises:
            OSError: If the process has ended, or is not ours to look at.
        """
        descriptor = os.open(name, os.O_RDONLY, dir_fd=self.proc)
        try:
            return os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)

    @staticmethod
    def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
        while pid in parents:
            if pid == ancestor:
                return True
            pid = parents[pid]
        return pid == ancestor


def still_there(names: Sequence[str]) -> str:
    """How an audit tells of processes that were left behind."""
    shown = sorted(set(names))[:_SHOWN_NAMES]
    return f"{len(names)} processes of the agent were still there: {', '.join(shown)}"


def _await_end(pids: Iterable[int]) -> None:
    """Give killed processes the moment that they need to end; on a busy machine the next look would come too early."""
    poll = select.poll()
    ends = []
    for pid in pids:
        with suppress(OSError):
            ends.append(os.pidfd_open(pid))
            poll.register(ends[-1], select.POLLIN)
    left = len(ends)
    while left and (ready := poll.poll(_END_MILLISECONDS)):
        for end, _ in ready:
            poll.unregister(end)
        left -= len(ready)
    for end in ends:
        os.close(end)


async def run(command: Command, table: ProcessTable, *, leave_nothing: bool = False) -> Completed:
    """Run a command in a session of its own until it exits; cancelling kills its whole tree.

    Args:
        command: What to run.
        table: The processes among which to kill.
        leave_nothing: Whether what it left in the background is killed too when it exits by itself; if not, that
            lives on, but what it prints later is lost.

    Raises:
        OSError: If the command cannot be started.
    """
    stdout = _Pipe(command.max_bytes)
    stderr = _Pipe(command.max_bytes) if not command.merge_stderr else None
    pipes = [stdout, *([stderr] if stderr else [])]
    try:
        process = Process.start(command, table, stdout.write_end, stderr.write_end if stderr else subprocess.STDOUT)
    except BaseException:
        for pipe in pipes:
            pipe.close()
        raise
    for pipe in pipes:
        pipe.listen()
    timed_out = False
    try:
        async with asyncio.timeout(command.timeout_seconds):
            await _exit_of(process.pid)
    except TimeoutError:
        timed_out = True
    finally:
        return_code = process.end(kill=timed_out or leave_nothing)
        for pipe in pipes:
            pipe.close()
    if return_code == -signal.SIGKILL and not timed_out and not _can_start_processes():
        # The PID namespace is going down, and this process with it: the command was not killed, its sandbox was, and
        # that must not look like a result.
        await asyncio.get_running_loop().create_future()
    return Completed(return_code, stdout.kept, stderr.kept if stderr else HeadTail(0), timed_out)


@dataclass(frozen=True, slots=True)
class Process:
    """A command that runs in a session of its own, with a mark that all below it inherit."""

    popen: subprocess.Popen[bytes]
    mark: bytes
    table: ProcessTable

    @classmethod
    def start(cls, command: Command, table: ProcessTable, stdout: int, stderr: int) -> Self:
        """Start a command.

        Raises:
            OSError: If it cannot be started.
        """
        mark = table.new_mark()
        popen = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env={**command.env, **mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        table.owned.add(popen.pid)
        process = cls(popen, f"{_MARK}={mark[_MARK]}".encode(), table)
        if command.limits is not None:
            process.limit(command.limits)
        return process

    @property
    def pid(self) -> int:
        """Its number, which is also its session's."""
        return self.popen.pid

    def limit(self, limits: Limits) -> None:
        """Put limits upon it, and upon what it has started before it had them."""
        limited: set[int] = set()
        while new := (self.table.tree(self.pid, self.mark) | {self.pid}) - limited:
            for pid in new:
                with suppress(ProcessLookupError):
                    limits.apply(pid, count_processes=True)
            limited |= new

    def end(self, *, kill: bool) -> int:
        """Its exit status; it is killed with its whole tree if it still runs, or if asked."""
        if kill or self.popen.poll() is None:
            self.table.kill(self.pid, self.mark)
        return_code = self.popen.wait()
        self.table.owned.discard(self.pid)
        return return_code


def _can_start_processes() -> bool:
    try:
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=False)
    except OSError:
        return False
    return True


async def _exit_of(pid: int) -> None:
    """Wait until a child has exited; it stays to be waited for."""
    descriptor = os.pidfd_open(pid)
    try:
        await readable(descriptor)
    finally:
        os.close(descriptor)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read: data, end of file, or the end of a pidfd's process."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


class _Pipe:
    """Keeps the head and tail of what is written into a pipe."""

    def __init__(self, max_bytes: int) -> None:
        self.kept = HeadTail(max_bytes)
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    def listen(self) -> None:
        """Begin to read; the child holds the writing end from here on."""
        os.close(self.write_end)
        self.write_end = -1
        asyncio.get_running_loop().add_reader(self._read_end, self._read)

    def close(self) -> None:
        """Read what is there, then stop."""
        if self._read_end >= 0 and self.write_end < 0:
            while self._read():
                pass
        self._stop()
        if self.write_end >= 0:
            os.close(self.write_end)

    def _read(self) -> bool:
        if self._read_end < 0:
            return False
        try:
            data = os.read(self._read_end, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._stop()
            return False
        self.kept.write(data)
        return True

    def _stop(self) -> None:
        if self._read_end >= 0:
            asyncio.get_running_loop().remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
