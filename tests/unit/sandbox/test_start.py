"""A command that waits for the task that it is started for."""

from pathlib import Path
from typing import override

import pytest

from seatrial_sandbox.start import for_task
from tests.clocks import HeldClock


class Writing(HeldClock):
    """While somebody waits, somebody else writes."""

    def __init__(self, file: Path, *parts: str) -> None:
        super().__init__()
        self.file, self.parts = file, list(parts)

    @override
    async def sleep(self, seconds: float) -> None:
        self.file.write_text(self.parts.pop(0))


@pytest.mark.parametrize("parts", [["a b\n"], ["", "a ", "a b\n"]])
async def test_a_command_gets_the_slug_as_one_argument_once_it_is_whole(tmp_path: Path, parts: list[str]) -> None:
    clock = Writing(tmp_path / "slug", *parts)
    assert await for_task(["start.sh", "{task}", "x{task}"], clock.file, clock) == ["start.sh", "a b", "x{task}"]
    assert clock.parts == []
