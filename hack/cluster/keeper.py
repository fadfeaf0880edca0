"""Keeps one copy until its owner ends or says so, and then leaves no trace of it.

    python -m hack.cluster.keeper FOLDER GRADE [--owner PID]

It is a process of its own because its owner may be killed; if it is killed itself, the kernel ends what it started.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hack.cluster import traces
from hack.cluster.copies import Copy
from hack.cluster.layout import Grade, Layout
from hack.cluster.node import namespaces
from hack.cluster.processes import dies_with_us

_END_SECONDS = 10.0


async def keep(layout: Layout, grade: Grade, owner: int | None) -> bool:
    """Run a copy until the owner ends (never, if there is none), a SIGTERM comes, or the copy ends by itself.

    Returns:
        Whether it was told to end.
    """
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    is_node = grade is Grade.NODE
    with _entrance(is_relay=is_node) as entrance, _watched(owner, over):
        runner = await _start_runner(layout, grade, entrance)
        init = await namespaces.init_of(runner) if is_node else None
        Copy(grade=grade, port=entrance.getsockname()[1], keeper=os.getpid(), init=init).write(layout)
        async with asyncio.TaskGroup() as group:
            group.create_task(_tell_end(runner, over))
            await over.wait()
            was_told = runner.returncode is None
            await _end(runner, init)
    return was_told


async def _start_runner(layout: Layout, grade: Grade, entrance: socket.socket) -> asyncio.subprocess.Process:
    words: tuple[str, ...] = (sys.executable, "-m", "hack.cluster.runner", str(layout.folder), grade)
    words = (*words, f"--socket={entrance.fileno()}")
    if grade is Grade.NODE:
        traces.make_cgroups(layout)
        words = namespaces.inside_own(*words)
    with layout.log("runner").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *dies_with_us(*words), stdin=asyncio.subprocess.DEVNULL, stderr=log, pass_fds=[entrance.fileno()]
        )


async def _tell_end(process: asyncio.subprocess.Process, over: asyncio.Event) -> None:
    await process.wait()
    over.set()


async def _end(runner: asyncio.subprocess.Process, init: int | None) -> None:
    """End the runner, or the first process of its namespaces, with which all inside ends."""
    with suppress(ProcessLookupError):
        if init is None:
            runner.terminate()
        else:
            os.kill(init, signal.SIGKILL)
    try:
        async with asyncio.timeout(_END_SECONDS):
            await runner.wait()
    except TimeoutError:
        runner.kill()


@contextmanager
def _entrance(*, is_relay: bool) -> Iterator[socket.socket]:
    """A socket on a free port of the loopback.

    A relay listens on it. Else it only holds the port for the API server, which shares it: the kernel gives it to
    nobody who does not ask to share, and a bound socket that does not listen takes no connections.
    """
    with socket.socket() as entrance:
        entrance.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(not is_relay))
        entrance.bind(("127.0.0.1", 0))
        if is_relay:
            entrance.listen()
        yield entrance


@contextmanager
def _watched(pid: int | None, gone: asyncio.Event) -> Iterator[None]:
    """Set the event when the process ends; never, if there is none."""
    if pid is None:
        yield
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        gone.set()
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, gone.set)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def main() -> int:
    """Keep one copy; its logs stay only if nobody owns it and it ended by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("grade", type=Grade)
    parser.add_argument("--owner", type=int)
    arguments = parser.parse_args()
    layout = Layout(arguments.folder)
    is_owned = arguments.owner is not None
    was_told = False
    try:
        was_told = asyncio.run(keep(layout, arguments.grade, arguments.owner))
    except Exception as exc:
        print(json.dumps({"error": str(exc)}), flush=True)
        raise
    finally:
        traces.remove(layout, keep_logs=not is_owned and not was_told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
