import asyncio
import ctypes
import errno
import os
import signal
from pathlib import Path

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.apart import MAX_ANSWER_BYTES, MAX_MEMORY_BYTES, Picture, WorkFailedError, apart


async def test_text_and_pictures_come_back() -> None:
    assert await apart(lambda: "ä\0", 60) == "ä\0"
    assert await apart(lambda: Picture(b"\x89PNG\xff"), 60) == Picture(b"\x89PNG\xff")


async def test_what_a_child_changes_in_memory_is_lost_and_what_it_writes_stays(tmp_path: Path) -> None:
    seen: list[int] = []

    def work() -> str:
        seen.append(os.getpid())
        (tmp_path / "file").write_text("x")
        return str(os.getpid())

    assert await apart(work, 60) != str(os.getpid())
    assert not seen
    assert (tmp_path / "file").read_text() == "x"


async def test_a_crash_in_c_is_a_failed_call() -> None:
    with pytest.raises(ToolError, match=r"broke the reader \(SIGSEGV\): it is damaged"):
        await apart(lambda: ctypes.string_at(0).decode(), 60)


async def test_an_endless_loop_is_killed() -> None:
    def loop() -> str:
        while True:
            pass

    with pytest.raises(ToolError, match=r"gave up after 0.2 s"):
        await apart(loop, 0.2)


async def test_too_much_memory_is_refused() -> None:
    with pytest.raises(ToolError, match="out of memory"):
        await apart(lambda: str(len(bytearray(2 * MAX_MEMORY_BYTES))), 60)


async def test_an_answer_without_end_is_not_taken() -> None:
    with pytest.raises(ToolError, match="too large"):
        await apart(lambda: "x" * (MAX_ANSWER_BYTES + (1 << 20)), 60)


async def test_errors_keep_their_words_and_faults_their_kind() -> None:
    def wrong() -> str:
        raise ToolError("write 'a', not 'b'")

    def full() -> str:
        raise OSError(errno.ENOSPC, "No space", "/host/path")

    def crash() -> str:
        raise KeyError("/host/path")

    with pytest.raises(ToolError, match="write 'a', not 'b'"):
        await apart(wrong, 60)
    with pytest.raises(ToolError, match="the disk is full; delete"):
        await apart(full, 60)
    with pytest.raises(WorkFailedError, match=r"^KeyError$"):
        await apart(crash, 60)


async def test_a_child_that_is_killed_from_without_is_started_once_more(tmp_path: Path) -> None:
    def once() -> str:
        if (tmp_path / "before").exists():
            return "done"
        (tmp_path / "before").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    assert await apart(once, 60) == "done"


async def test_a_child_holds_nothing_of_its_parents_connections() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(ToolError, match="the file system refused: Bad file descriptor"):
            await apart(lambda: str(os.write(writing, b"x")), 60)
    finally:
        os.close(reading)
        os.close(writing)


async def test_children_work_side_by_side(tmp_path: Path) -> None:
    """Each waits for the other's file, so neither could end alone."""

    def meet(own: str, other: str) -> str:
        (tmp_path / own).touch()
        while not (tmp_path / other).exists():
            pass
        return own

    async with asyncio.TaskGroup() as group:
        one = group.create_task(apart(lambda: meet("a", "b"), 60))
        two = group.create_task(apart(lambda: meet("b", "a"), 60))
    assert (one.result(), two.result()) == ("a", "b")


async def test_a_cancelled_call_leaves_no_child() -> None:
    before = children()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await apart(lambda: str(signal.pause()), 60)
    assert children() <= before


def children() -> set[str]:
    """Processes of this one, by id; other tests may have left some to it."""
    return {child for listed in Path("/proc/self/task").glob("*/children") for child in listed.read_text().split()}
