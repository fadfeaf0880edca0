import asyncio
from typing import Annotated

import pytest
from mcp import Client
from mcp.types import TextContent
from pydantic import Field

from seatrial_sandbox.tool_server import Tool, ToolServer

type Count = Annotated[int, Field(description="How many.")]


async def ask(tool: Tool, *, timeout_seconds: float = 10.0, **arguments: object) -> tuple[bool, str]:
    server = ToolServer("test", "Tests.")
    server.expose(tool, timeout_seconds=timeout_seconds, max_bytes=60, advice="ask for less")
    async with Client(server) as client:
        result = await client.call_tool(tool.__name__, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return result.is_error, content.text


async def test_a_blocking_tool_out_of_time_is_interrupted() -> None:
    def busy() -> str:
        """Never ends by itself."""
        while True:
            pass

    assert await ask(busy, timeout_seconds=0.2) == (True, "gave up after 0.2 s; ask for less at once")


async def test_a_waiting_tool_out_of_time_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def waits() -> str:
        """Waits for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    assert (await ask(waits, timeout_seconds=0.2))[0]
    assert cancelled.is_set()


async def test_a_crash_is_an_error_that_names_its_kind_and_tells_no_more() -> None:
    def crash() -> str:
        """Crashes."""
        raise KeyError("/host/secret")

    assert await ask(crash) == (True, "crash failed for a reason of its own (KeyError); try another way")


async def test_an_answer_over_budget_loses_its_middle_and_says_so() -> None:
    def talk(count: Count) -> str:
        """Talks."""
        return "x" * count

    is_error, text = await ask(talk, count=100)
    assert not is_error
    assert text == "x" * 40 + "\n[... 40 bytes left out; ask for less ...]\n" + "x" * 20


async def test_no_answer_is_never_nothing() -> None:
    def silent() -> str:
        """Says nothing."""
        return ""

    assert await ask(silent) == (False, "(empty)")


@pytest.mark.parametrize(
    ("error", "lesson"),
    [
        (OSError(28, "No space left on device", "/host/x"), "the disk is full"),
        (OSError(27, "File too large"), "larger than the sandbox allows"),
        (PermissionError(13, "Permission denied", "/host/x"), "Permission denied"),
        (MemoryError(), "out of memory"),
    ],
)
async def test_what_the_machine_refuses_is_told_without_host_paths(error: Exception, lesson: str) -> None:
    def refused() -> str:
        """Is refused."""
        raise error

    is_error, text = await ask(refused)
    assert is_error
    assert lesson in text
    assert "/host" not in text
