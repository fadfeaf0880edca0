"""A harness that is no agent: it calls every tool of a task wrongly and notes what comes back."""

import json
from pathlib import Path
from typing import Any, ClassVar, override

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from mcp_types import Tool

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import ToolResultLimit
from seatrial_api.trajectory import ToolCall, Turn
from seatrial_rollout.harness.endpoints import endpoints
from seatrial_rollout.harness.errors import HarnessError
from seatrial_rollout.harness.record import HarnessRecord
from seatrial_rollout.harness.setting import current_setting
from seatrial_rollout.harness.tool_result import result_text
from seatrial_rollout.harness.tool_server import Offer, ToolServer, await_offers, running
from seatrial_rollout.inspection.tool_faults import LISTED, NO_ANSWER, wrong_arguments


class ToolProber(BaseAgent):  # type: ignore[misc]  # Harbor is untyped here
    """Lists the tools of every server, then calls each with arguments that its schema does not allow."""

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(mcp_servers=True)

    def __init__(self, logs_dir: Path, *args: Any, **kwargs: Any) -> None:
        """Take Harbor's arguments."""
        super().__init__(logs_dir, *args, **kwargs)
        self._limits = current_setting().request.harness.limits
        self._offers: list[Offer] = []
        self._calls: list[ToolCall] = []
        self._outcome, self._detail = Outcome.CANCELLED, "cut off before every tool was called"

    @staticmethod
    @override
    def name() -> str:
        return "tool-prober"

    @override
    def version(self) -> str:
        return "1"

    @property
    def record(self) -> HarnessRecord:
        """The calls so far, as one turn that nobody sampled."""
        turn = Turn(sequence=0, start=0, stop=0, finish_reason="stop", text="", tool_calls=self._calls)
        return HarnessRecord(outcome=self._outcome, detail=self._detail, turns=[turn])

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        deadline = Deadline.after(self._limits.setup_timeout_seconds)
        try:
            found = endpoints(self.mcp_servers, environment, {}, read_seconds=self._limits.tool_call_timeout_seconds)
            self._offers = await await_offers(found, deadline)
        except HarnessError as exc:
            self._outcome, self._detail = exc.outcome, str(exc)
            raise

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        async with running(self._offers) as servers:
            for server in servers:
                for tool in server.tools:
                    await self._probe(server, tool)
        self._outcome, self._detail = Outcome.COMPLETED, ""

    async def _probe(self, server: ToolServer, tool: Tool) -> None:
        listed = json.dumps({"description": tool.description, "schema": tool.input_schema})
        self._note(server, tool, LISTED, listed, is_error=False, seconds=0.0)
        for arguments in wrong_arguments(tool.input_schema):
            started = SYSTEM_CLOCK.now()
            try:
                answer = await server.call(tool, arguments, self._limits.tool_call_timeout_seconds)
                text, is_error = result_text(answer, ToolResultLimit()), bool(answer.is_error)
            except TimeoutError:
                text, is_error = NO_ANSWER, False
            seconds = SYSTEM_CLOCK.now() - started
            self._note(server, tool, json.dumps(arguments), text, is_error=is_error, seconds=seconds)

    def _note(
        self, server: ToolServer, tool: Tool, arguments: str, result: str, *, is_error: bool, seconds: float
    ) -> None:
        self._calls.append(
            ToolCall(
                server=server.name,
                tool=tool.name,
                arguments=arguments,
                result=result,
                is_error=is_error,
                duration_seconds=seconds,
            )
        )
