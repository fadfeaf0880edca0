"""`python -m seatrial_sandbox.start COMMAND ...`: become a command once a trial has told the slug of its task.

It is told by `python -m seatrial_sandbox.start --task SLUG` in another container of the sandbox's pod, which is warm
before anybody knows its task.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.sandboxes import TASK_ARGUMENT, TASK_FILE, TELL

_POLL_SECONDS = 0.1


async def for_task(command: Sequence[str], file: Path = Path(TASK_FILE), clock: Clock = SYSTEM_CLOCK) -> list[str]:
    """The command for the task that a file names, once it does: in a whole line."""
    while (slug := _slug(file)) is None:
        await clock.sleep(_POLL_SECONDS)
    return [slug if argument == TASK_ARGUMENT else argument for argument in command]


def _slug(file: Path) -> str | None:
    said = file.read_text() if file.is_file() else ""
    return said[:-1] if said.endswith("\n") else None


def main(arguments: Sequence[str]) -> None:
    """Tell; or wait, and become the command."""
    if arguments[0] == TELL[-1]:
        Path(TASK_FILE).write_text(f"{arguments[1]}\n")
        return
    command = asyncio.run(for_task(arguments))
    os.execvp(command[0], command)  # noqa: S606  no shell: a slug is one argument, whatever is in it


if __name__ == "__main__":
    main(sys.argv[1:])
