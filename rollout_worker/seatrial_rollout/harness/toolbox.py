"""Every tool of a trial under the name that the model knows it by, and the answers it gets."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mcp_types import CallToolResult, Tool

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.harness import ToolResultLimit
from seatrial_api.trajectory import ToolCall
from seatrial_rollout.harness.tool_budgets import ToolBudgets
from seatrial_rollout.harness.tool_result import result_text
from seatrial_rollout.harness.tool_schema import ToolParameters, open_envelope
from seatrial_rollout.harness.tool_source import ToolSource, shown_name
from seatrial_rollout.tito.parsed import ParsedCall
from seatrial_rollout.tito.template import ToolSchema

type MakeCall = Callable[[ToolSource, Tool, dict[str, Any], float], Awaitable[CallToolResult]]
"""Makes a call of a source's tool within some seconds, as `ToolSource.call` does."""


@dataclass(frozen=True, slots=True)
class _OfferedTool:
    source: ToolSource
    tool: Tool
    parameters: ToolParameters


async def call_directly(source: ToolSource, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
    """Call a tool once, in the sandbox that there is."""
    return await source.call(tool, arguments, seconds)


class Toolbox:
    """The tools of all sources."""

    def __init__(
        self,
        sources: Iterable[ToolSource],
        limit: ToolResultLimit,
        make_call: MakeCall = call_directly,
        budgets: ToolBudgets | None = None,
    ) -> None:
        self._limit = limit
        self._make_call = make_call
        self._budgets = budgets or ToolBudgets()
        self._tools: dict[str, _OfferedTool] = {}
        for source in sources:
            for tool in source.tools:
                name = shown_name(source.name, tool.name)
                if name in self._tools:
                    raise InvalidInputError(f"there are two sources of a tool that the model would know as {name}")
                self._tools[name] = _OfferedTool(source, tool, open_envelope(tool.input_schema))

    def schemas(self) -> list[ToolSchema]:
        """The tools as chat templates read them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": offered.tool.description or "",
                    "parameters": offered.parameters.schema,
                },
            }
            for name, offered in self._tools.items()
        ]

    async def call(self, call: ParsedCall, seconds: float) -> ToolCall:
        """Make a call that the model asked for; what the model got wrong comes back as an answer that teaches.

        Raises:
            TimeoutError: No answer within `seconds`.
            HarnessError: The tool's server, or the sandbox around it, cannot be used any more.
        """
        offered = self._tools.get(call.name)
        if offered is None:
            return self.failed(call, f"there is no tool {call.name!r}. Tools: {', '.join(self._tools) or 'none'}")
        if problem := offered.parameters.problem(call.arguments):
            return self.failed(call, f"{call.name} was not called: {problem}")
        if refusal := self._budgets.refusal(call.name, self._tools):
            return self.failed(call, refusal)
        self._budgets.spend(call.name)
        started = SYSTEM_CLOCK.now()
        arguments = offered.parameters.wrap(call.arguments)
        result = await self._make_call(offered.source, offered.tool, arguments, seconds)
        return ToolCall(
            server=offered.source.name,
            tool=offered.tool.name,
            arguments=call.arguments_text,
            result=result_text(result, self._limit),
            is_error=bool(result.is_error),
            duration_seconds=SYSTEM_CLOCK.now() - started,
        )

    def failed(self, call: ParsedCall, reason: str, duration_seconds: float = 0.0) -> ToolCall:
        """A call that was not made, or not to its end, with the reason as its answer."""
        offered = self._tools.get(call.name)
        return ToolCall(
            server="" if offered is None else offered.source.name,
            tool=call.name if offered is None else offered.tool.name,
            arguments=call.arguments_text,
            result=f"Error: {reason}",
            is_error=True,
            duration_seconds=duration_seconds,
        )
