"""Limits of commands hold for all that they start, however early."""

import os
import resource
from pathlib import Path

from seatrial_sandbox.limits import Limits
from seatrial_sandbox.processes import Command, Process, ProcessTable


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
