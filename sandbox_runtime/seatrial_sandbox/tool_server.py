"""An MCP server whose tools have a timeout and a byte budget, and whose errors say what to change."""

import functools
import inspect
import json
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Never, override

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, InputRequiredResult
from pydantic import ValidationError

from seatrial_sandbox.apart import Answer, Picture, WorkFailedError, apart
from seatrial_sandbox.complaints import explained
from seatrial_sandbox.libraries import load
from seatrial_sandbox.text import cut
from seatrial_sandbox.transport import LineReader, LineWriter

DEFAULT_TIMEOUT_SECONDS = 60.0
DEFAULT_MAX_BYTES = 50_000
DEFAULT_MAX_ERROR_BYTES = 4_000
"""Room for what is wrong; an error that repeats what it was given must not be as long as that."""

type Tool = Callable[..., Answer] | Callable[..., Coroutine[Any, Any, Answer]]


class ToolServer(MCPServer[None]):
    """Serves plain functions from arguments to text, or to a picture.

    A tool that fails answers with `is_error` and a text that teaches: the text of the `ToolError` it raised,
    what is wrong with the arguments, or that the tool itself is at fault. It never answers with nothing.
    """

    def __init__(self, name: str, instructions: str, libraries: Sequence[str] = ()) -> None:
        """Make a server without tools.

        Args:
            name: What stands before its tools' names.
            instructions: What it is for.
            libraries: What tools that run apart load; loaded here before the first of them is forked.
        """
        super().__init__(name, instructions=instructions, log_level="ERROR", subscriptions=False)
        self._parameters: dict[str, dict[str, Any]] = {}
        self._error_bytes: dict[str, int] = {}
        self._descriptions: dict[str, str] = {}
        self._turn = anyio.Lock()
        self.libraries = libraries

    @property
    def parameters(self) -> Mapping[str, dict[str, Any]]:
        """JSON schema of every tool's arguments, by the tool's name."""
        return self._parameters

    def describe(self, tool: str) -> str:
        """What a tool says of itself to the model.

        Raises:
            KeyError: If there is no such tool.
        """
        return self._descriptions[tool]

    def preload(self) -> None:
        """Load what the tools need, once: for a process that is forked, before it is."""
        load(self.libraries)

    def expose(
        self,
        tool: Tool,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_error_bytes: int = DEFAULT_MAX_ERROR_BYTES,
        advice: str = "",
        is_apart: bool | Callable[[Mapping[str, Any]], bool] = False,
    ) -> None:
        """Offer a function as a tool; its docstring is what the model reads.

        Args:
            tool: A blocking function holds up every other call meanwhile; what waits should be a coroutine.
            timeout_seconds: A call that takes longer is interrupted and answered with an error.
            max_bytes: A longer answer loses its middle.
            max_error_bytes: So does a longer error.
            advice: How to get at what was cut.
            is_apart: Run it in a child that a hostile file may break, one call of this server at a time; it changes
                nothing but files. Or which calls are to run so, by their arguments.
        """

        @functools.wraps(tool)
        async def call(**arguments: Any) -> str | Image:
            try:
                if is_apart(arguments) if callable(is_apart) else is_apart:
                    self.preload()
                    async with self._turn:
                        answer = await apart(functools.partial(_plain, tool, arguments), timeout_seconds)
                else:
                    answer = await _invoke(tool, arguments, timeout_seconds)
            except TimeoutError:
                raise ToolError(f"gave up after {timeout_seconds:g} s; ask for less at once") from None
            except WorkFailedError as error:
                raise ToolError(f"{tool.__name__} cannot deal with this ({error}); the file may be damaged") from None
            except (OSError, MemoryError, RecursionError) as error:
                raise ToolError(explained(error)) from error
            if isinstance(answer, Picture):
                return Image(data=answer.data, format=answer.media_type.removeprefix("image/"))
            return cut(answer, max_bytes, advice) or "(empty)"

        self._descriptions[tool.__name__] = inspect.cleandoc(tool.__doc__ or "")
        self.add_tool(call, description=self._descriptions[tool.__name__], structured_output=False)
        schema = self._tool_input_schema(tool.__name__) or {}
        _tidy(schema)
        self._parameters[tool.__name__] = schema
        self._error_bytes[tool.__name__] = max_error_bytes

    async def serve(self, read: LineReader, write: LineWriter) -> None:
        """Serve one MCP session until the client hangs up."""
        server = self._lowlevel_server
        await server.run(read, write, server.create_initialization_options())

    @override
    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            return await self._checked_call(name, arguments, context)
        except ToolError as error:
            text = str(error).removeprefix(f"Error executing tool {name}: ")
            room = self._error_bytes.get(name, DEFAULT_MAX_ERROR_BYTES)
            raise type(error)(cut(text, room)) from error

    async def _checked_call(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None
    ) -> CallToolResult | InputRequiredResult:
        if name not in self._parameters:
            raise ToolError(f"there is no tool {name!r}; the tools are: {', '.join(self._parameters)}")
        known = self._parameters[name].get("properties", {})
        if unknown := sorted(arguments.keys() - known.keys()):
            raise ToolError(f"{name} takes no argument {', '.join(map(repr, unknown))}; {self._usage(name)}")
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            fault = type(error.__cause__).__name__
            raise UnexpectedToolError(f"{name} failed for a reason of its own ({fault}); try another way") from error
        except ToolError as error:
            match error.__cause__:
                case ValidationError() as cause:
                    faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors())
                    raise ToolError(f"{faults}; {self._usage(name)}") from cause
                case ToolError() as cause:  # without the prefix that the base class puts before it
                    raise ToolError(str(cause)) from cause
                case _:
                    raise

    def _usage(self, name: str) -> str:
        schema = self._parameters[name]
        required = schema.get("required", [])
        arguments = [
            f"{argument} ({_type_name(facts)}{'' if argument in required else ', optional'})"
            for argument, facts in schema.get("properties", {}).items()
        ]
        return f"{name} takes: {', '.join(arguments)}"


async def _invoke(tool: Tool, arguments: dict[str, Any], timeout_seconds: float) -> Answer:
    with _alarm(timeout_seconds):
        answer = tool(**arguments)
    if isinstance(answer, str | Picture):
        return answer
    with anyio.fail_after(timeout_seconds):
        return await answer


def _plain(tool: Tool, arguments: dict[str, Any]) -> Answer:
    """Call a tool that does not wait.

    Raises:
        TypeError: If it is one that does.
    """
    answer = tool(**arguments)
    if not isinstance(answer, str | Picture):
        raise TypeError(f"{tool.__name__} answers with {type(answer).__name__}")
    return answer


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupt blocking code; worker threads could only be abandoned, and a sandbox's keeper can start none.

    Raises:
        TimeoutError: In the code that runs when the time is up.
    """
    if threading.current_thread() is not threading.main_thread():  # where there are no signals
        yield
        return

    def ring(*_: object) -> Never:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _tidy(schema: dict[str, Any]) -> None:
    """Take out of a tool's schema what only costs the model tokens: titles, and `null` for what is optional anyway."""
    schema.pop("title", None)
    for model in schema.get("$defs", {}).values():
        _tidy(model)
    for facts in schema.get("properties", {}).values():
        facts.pop("title", None)
        options = [option for option in facts.get("anyOf", []) if option.get("type") != "null"]
        if len(options) == 1:
            del facts["anyOf"]
            facts.pop("default", None)
            facts.update(options[0])


def _type_name(facts: dict[str, Any]) -> str:
    if "enum" in facts:
        return " or ".join(json.dumps(value) for value in facts["enum"])
    if "items" in facts:
        return f"list of {_type_name(facts['items'])}"
    return str(facts.get("type", "value"))
