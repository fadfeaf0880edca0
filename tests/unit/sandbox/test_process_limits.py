"""All that commands start is found, however it hides, and has their limits, however early it was started."""

import os
import resource
from pathlib import Path

from seatrial_sandbox.limits import Limits
from seatrial_sandbox.processes import Command, Process, ProcessTable
from tests.leftovers import eventually


def test_what_a_command_has_started_before_it_was_limited_is_limited_too(tmp_path: Path) -> None:
    command = Command(
        ["sh", "-c", "sleep 600 & echo $!; setsid sleep 600 & echo $!; wait"], tmp_path, {"PATH": os.defpath}
    )
    reading, writing = os.pipe()
    process = Process.start(command, ProcessTable(), writing, writing)
    os.close(writing)
    try:
        with os.fdopen(reading) as said:
            children = [int(said.readline()), int(said.readline())]
        process.limit(Limits(processes=77, open_files=66))
        for pid in (process.pid, *children):
            assert resource.prlimit(pid, resource.RLIMIT_NPROC) == (77, 77)
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (66, 66)
    finally:
        process.end(kill=True)


async def test_a_family_is_found_without_a_look_at_every_process(tmp_path: Path) -> None:
    script = "sh -c 'sleep 600 & echo $!; wait' & setsid sleep 600 & echo $!; sh -c 'kill -9 $$' & wait"
    reading, writing = os.pipe()
    process = Process.start(
        Command(["sh", "-c", script], tmp_path, {"PATH": os.defpath}), ProcessTable(), writing, writing
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as said:
            started = {int(said.readline()), int(said.readline())}
        await eventually(lambda: len(process.table.family(process.pid)) == 3, what="the dead sibling to be buried")
        family = process.table.family(process.pid)
        assert started < family
        assert family == process.table.descendants(process.pid)
        assert process.pid in process.table.family(os.getpid())
    finally:
        process.end(kill=True)
    assert process.table.family(process.pid) == set()
