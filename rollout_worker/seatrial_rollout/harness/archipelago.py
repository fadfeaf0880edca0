"""The `archipelago` harness: a ReAct loop over a task's MCP tools, as an agent of Harbor."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, override

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from seatrial_api.clock import Deadline
from seatrial_api.errors import SeatrialError
from seatrial_api.outcome import Outcome
from seatrial_rollout.harness.compaction import begin_anew
from seatrial_rollout.harness.endpoints import endpoints
from seatrial_rollout.harness.errors import HarnessError, SandboxFailedError
from seatrial_rollout.harness.final_answer import leave_answer
from seatrial_rollout.harness.notebook import NOTES_FILE, TODO_FILE, Notebook
from seatrial_rollout.harness.react import Ending, ReActLoop
from seatrial_rollout.harness.record import HarnessRecord
from seatrial_rollout.harness.replay.lifeline import Lifeline, ReplayLimits, Restorable
from seatrial_rollout.harness.rollout_details import rollout_details
from seatrial_rollout.harness.sandbox_file import SandboxFile
from seatrial_rollout.harness.setting import current_setting
from seatrial_rollout.harness.tool_budgets import ToolBudgets
from seatrial_rollout.harness.tool_server import Endpoint, Offer, await_offers, running
from seatrial_rollout.harness.tool_source import ToolSource
from seatrial_rollout.harness.toolbox import Toolbox, call_directly
from seatrial_rollout.tito.session import Session
from seatrial_rollout.tito.template import Message


class Archipelago(BaseAgent):  # type: ignore[misc]  # Harbor is untyped here
    """Runs the policy of the current `HarnessSetting` in a Harbor trial.

    `setup` waits until every MCP server lists its tools; a server that is missing ends the trial there. `run` works
    until the policy answers or a limit ends it, both of which are graded, or until the infrastructure gives way,
    which is raised so that nothing is graded. In each case `record` holds everything up to that point.
    """

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(mcp_servers=True)

    def __init__(
        self,
        logs_dir: Path,
        *args: Any,
        system_prompt: str = "",
        collect_rollout_details: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make the agent as Harbor does.

        Args:
            logs_dir: Folder for the agent's logs.
            args: For Harbor.
            system_prompt: Words in front of the task's instruction; none if empty.
            collect_rollout_details: Put every turn's tokens into Harbor's result too, where they grow with the
                square of the conversation.
            kwargs: For Harbor.
        """
        super().__init__(logs_dir, *args, **kwargs)
        self._setting = current_setting()
        self._system_prompt = system_prompt
        self._collect_rollout_details = collect_rollout_details
        self._offers: list[Offer] = []
        self._session = self._new_session()
        self._loop: ReActLoop | None = None
        self._lifeline: Lifeline | None = None
        self._ending = Ending(Outcome.CANCELLED, "cut off before the agent ended")

    @staticmethod
    @override
    def name() -> str:
        return "archipelago"

    @override
    def version(self) -> str:
        return "1"

    @property
    def record(self) -> HarnessRecord:
        """The run so far."""
        sampled = [] if self._loop is None else self._loop.sampled
        return HarnessRecord(
            outcome=self._ending.outcome,
            detail=self._ending.detail,
            final_answer=self._ending.final_answer,
            sequences=self._session.sequences(),
            turns=[] if self._loop is None else self._loop.turns(),
            given=self._session.given(),
            charged_seconds=self._setting.clock.charged,
            num_restores=0 if self._lifeline is None else self._lifeline.num_restores,
            restore_seconds=0.0 if self._lifeline is None else self._lifeline.restore_seconds,
            num_prompt_tokens=sum(turn.num_prompt_tokens for turn in sampled),
            num_cached_tokens=sum(turn.num_cached_tokens for turn in sampled),
        )

    @property
    def max_steps(self) -> int:
        """Turns that the agent may take."""
        return self._setting.request.max_steps

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        limits = self._setting.request.harness.limits
        try:
            found = self._endpoints(environment)
            await self._begin_saving(environment)
            self._offers = await await_offers(found, Deadline.after(limits.setup_timeout_seconds))
        except HarnessError as exc:
            self._ending = Ending.of_error(exc)
            raise

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        self._setting.clock.start()
        try:
            await self._work(instruction, environment)
        except Exception as exc:
            self._ending = Ending.of_error(exc)
            raise
        finally:
            self._setting.clock.end()
            self._report(context)

    async def bring_back_work(self) -> bool:
        """Have another sandbox with all that the agent left, if its own has died since it finished; True if so."""
        return self._lifeline is not None and await self._lifeline.bring_back_work()

    def _endpoints(self, environment: BaseEnvironment) -> list[Endpoint]:
        limits = self._setting.request.harness.limits
        resolved = self.mcp_header_env
        headers = {
            server: {name: resolved.env[variable] for name, variable in references.items()}
            for server, references in resolved.refs.items()
        }
        return endpoints(self.mcp_servers, environment, headers, read_seconds=limits.tool_call_timeout_seconds)

    def _new_session(self) -> Session:
        request = self._setting.request
        return Session(
            self._setting.policy,
            self._setting.engine,
            request.sampling,
            request.harness.limits,
            request.harness.history,
            trial_id=request.trial_id,
        )

    async def _work(self, instruction: str, environment: BaseEnvironment) -> None:
        spec = self._setting.request.harness
        budgets = ToolBudgets(spec.limits.tools)
        notebook = self._new_notebook(environment) if spec.notebook else None
        async with running(self._offers, budgets.seconds) as servers:
            sources: list[ToolSource] = [*servers, *([] if notebook is None else [notebook])]
            self._lifeline = lifeline = self._new_lifeline(environment, sources)
            make_call = call_directly if lifeline is None else lifeline.call
            toolbox = Toolbox(sources, spec.limits.tool_result, make_call, budgets)

            async def anew(summary: str) -> list[Message]:
                pages = "" if notebook is None else await self._in_sandbox(notebook.pages)
                return self._opening(begin_anew(instruction, summary, pages))

            self._loop = ReActLoop(
                self._session,
                toolbox,
                spec.limits,
                self._setting.clock,
                max_steps=self.max_steps,
                begin_anew=anew if spec.compaction else None,
            )
            self._ending = await self._loop.run(self._opening(instruction))
            await self._in_sandbox(lambda: self._leave_answer(environment))
            if lifeline is not None:
                await lifeline.finish()

    async def _in_sandbox[T](self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something in the sandbox that changes nothing if it fails, in another one if need be."""
        return await (act() if self._lifeline is None else self._lifeline.hold(act))

    def _new_notebook(self, environment: BaseEnvironment) -> Notebook:
        todo, notes = (
            SandboxFile(environment, self.logs_dir, self.environment_logs_dir, name) for name in (TODO_FILE, NOTES_FILE)
        )
        return Notebook(todo, notes)

    def _new_lifeline(self, environment: BaseEnvironment, sources: list[ToolSource]) -> Lifeline | None:
        """What keeps the trial going when its sandbox dies; none where another sandbox cannot take its place."""
        restorable = self._restorable(environment)
        if restorable is None:
            return None
        limits = self._setting.request.harness.limits
        times = ReplayLimits(limits.setup_timeout_seconds, limits.tool_call_timeout_seconds)
        return Lifeline(restorable, sources, self._setting.clock, self._setting.request.sandbox.replay, times)

    async def _begin_saving(self, environment: BaseEnvironment) -> None:
        restorable = self._restorable(environment)
        if restorable is not None:
            try:
                await restorable.begin_saving()
            except SeatrialError as exc:
                raise SandboxFailedError(f"the sandbox's files cannot be read: {exc}") from exc

    def _restorable(self, environment: BaseEnvironment) -> Restorable | None:
        """The environment, if it can replace its sandbox and is to do so."""
        may_restore = self._setting.request.sandbox.replay.max_restores > 0
        return environment if may_restore and isinstance(environment, Restorable) else None

    def _opening(self, instruction: str) -> list[Message]:
        system = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
        return [*system, {"role": "user", "content": instruction}]

    async def _leave_answer(self, environment: BaseEnvironment) -> None:
        if self._ending.outcome is Outcome.COMPLETED:
            await leave_answer(self._ending.final_answer, environment, self.logs_dir, self.environment_logs_dir)

    def _report(self, context: AgentContext) -> None:
        record = self.record
        record.report_to(context)
        if self._collect_rollout_details:
            context.rollout_details = rollout_details(record.sequences, record.turns)
