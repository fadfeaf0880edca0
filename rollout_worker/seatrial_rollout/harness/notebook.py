"""The agent's memory outside of its context: a todo list and notes, as tools over two files in its sandbox."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from seatrial_api.clock import Deadline
from seatrial_rollout.harness.errors import SandboxFailedError
from seatrial_rollout.harness.sandbox_file import SandboxFile
from seatrial_sandbox.errors import SandboxPathError

TODO_FILE = "todo.md"
NOTES_FILE = "notes.md"
_MAX_CHARS = 8_000
"""Of each file: all of it comes back into the context."""
_MARKS = {"open": " ", "doing": "~", "done": "x"}


class _Item(BaseModel):
    """One line of the todo list."""

    task: Annotated[str, Field(min_length=1, max_length=500)]
    status: Literal["open", "doing", "done"] = "open"


_ITEMS = TypeAdapter(Annotated[list[_Item], Field(max_length=100)])
_ITEMS_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"task": {"type": "string"}, "status": {"type": "string", "enum": list(_MARKS)}},
        "required": ["task"],
    },
}
_HARMLESS = ToolAnnotations(idempotent_hint=True)
_LATER = "It outlives this conversation: you are shown it again where an earlier part had to be summed up."
_TOOLS = [
    Tool(
        name="write_todo",
        description=f"Replace your todo list. {_LATER}",
        input_schema={"type": "object", "properties": {"items": _ITEMS_SCHEMA}, "required": ["items"]},
        annotations=_HARMLESS,
    ),
    Tool(
        name="write_notes",
        description=f"Replace your notes, {_MAX_CHARS} characters at most. {_LATER}",
        input_schema={
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": _MAX_CHARS}},
            "required": ["text"],
        },
        annotations=_HARMLESS,
    ),
    Tool(
        name="read",
        description="Read your todo list and your notes.",
        input_schema={"type": "object", "properties": {}},
        annotations=_HARMLESS,
    ),
]


class Notebook:
    """A `ToolSource` of the harness's own: its tools run in the trial's process and keep everything in the sandbox.

    What a call writes is in the sandbox's snapshots, and is written again when the calls behind a snapshot are
    made again. The agent may read and change the files by other tools.
    """

    name = "notebook"
    is_in_sandbox = True

    def __init__(self, todo: SandboxFile, notes: SandboxFile) -> None:
        self._todo = todo
        self._notes = notes

    @property
    def tools(self) -> list[Tool]:
        """Its tools."""
        return _TOOLS

    async def call(self, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool.

        Raises:
            TimeoutError: The sandbox did not answer within `seconds`.
            SandboxFailedError: It is gone.
        """
        try:
            async with asyncio.timeout(seconds):
                return _said(await self._do(tool.name, arguments))
        except _RefusedError as exc:
            return _said(str(exc), is_error=True)
        except SandboxFailedError as exc:
            if not isinstance(exc.__cause__, SandboxPathError):
                raise
            return _said(str(exc), is_error=True)

    async def pages(self) -> str:
        """All that is in it, under headings; empty if nothing is.

        Raises:
            SandboxFailedError: The sandbox is gone.
        """
        texts = {"Your todo list": await self._todo.read(), "Your notes": await self._notes.read()}
        return "\n\n".join(
            f"{heading}:\n{text[:_MAX_CHARS].strip()}" for heading, text in texts.items() if text.strip()
        )

    async def let_go(self) -> None:
        """Nothing is held."""

    async def offered_again(self, deadline: Deadline) -> list[Tool]:
        """The same tools, whatever the sandbox."""
        del deadline
        return _TOOLS

    async def _do(self, tool: str, arguments: Mapping[str, Any]) -> str:
        match tool:
            case "write_todo":
                items = _items(arguments["items"])
                await self._todo.write("".join(f"- [{_MARKS[item.status]}] {item.task}\n" for item in items))
                num_left = sum(item.status != "done" for item in items)
                return f"The todo list has {len(items)} items, {num_left} of them not done."
            case "write_notes":
                text = arguments["text"]
                if len(text) > _MAX_CHARS:
                    raise _RefusedError(f"{len(text)} characters are too many; keep to {_MAX_CHARS}")
                await self._notes.write(text)
                return "The notes are written."
            case _:
                return await self.pages() or "Nothing is written yet."


class _RefusedError(Exception):
    """The model asked for what cannot be written; the message is a sentence for it."""


def _items(value: Any) -> list[_Item]:
    try:
        return _ITEMS.validate_python(value)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, ("items", *first["loc"])))
        raise _RefusedError(
            f'{where}: {first["msg"]}. Each item: {{"task": ..., "status": open, doing or done}}'
        ) from exc


def _said(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)
