"""The guard: nothing of a process group outlives its command or its parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seatrial_rollout.engine import guard
from tests.leftovers import all_processes, eventually

TREE = "import os, signal, subprocess as p; p.Popen(['sleep', '99']); print(os.getpid(), flush=True); signal.pause()"


@contextmanager
def guarded(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command under a guard."""
    arguments = [sys.executable, "-I", "-S", guard.__file__, *command]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        if group_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def group_of(leader: int) -> list[int]:
    """Living processes of a group."""
    return [pid for pid in all_processes() if _group(pid) == leader]


def _group(pid: int) -> int:
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return -1
    return -1 if state == "Z" else int(group)


def server_pid(process: subprocess.Popen[bytes]) -> int:
    """What the command printed once it had its child."""
    assert process.stdout is not None
    return int(process.stdout.readline())


async def test_a_command_that_is_killed_takes_its_children_along() -> None:
    with guarded(sys.executable, "-c", TREE) as process:
        os.kill(server_pid(process), signal.SIGKILL)

        await eventually(lambda: not group_of(process.pid), what="the group to end")


async def test_the_group_ends_when_the_parent_lets_go() -> None:
    with guarded(sys.executable, "-c", TREE) as process:
        server_pid(process)
        assert process.stdin is not None
        process.stdin.close()

        await eventually(lambda: not group_of(process.pid), what="the group to end")


async def test_the_command_ends_when_the_guard_is_killed() -> None:
    with guarded(sys.executable, "-c", TREE) as process:
        server = server_pid(process)
        process.kill()

        await eventually(lambda: server not in group_of(process.pid), what="the command to end")


@pytest.mark.parametrize("code", [0, 3])
def test_the_log_says_how_the_command_ended(code: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        arguments = [sys.executable, "-I", "-S", guard.__file__, sys.executable, "-c", f"raise SystemExit({code})"]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=file, start_new_session=True) as process:
            process.wait(timeout=60)

    assert f"ended with code {code}" in log.read_text()
