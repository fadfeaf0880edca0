"""Real agents, unchanged: each is Harbor's adapter of it, with the token-exact proxy as its model."""

import asyncio
import os
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, override

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from seatrial_api.outcome import Outcome
from seatrial_rollout.environment.isolation import harness_folder
from seatrial_rollout.environment.tunnel import Relay
from seatrial_rollout.harness.errors import EngineFailedError, HarnessError
from seatrial_rollout.harness.final_answer import leave_answer
from seatrial_rollout.harness.react import Ending
from seatrial_rollout.harness.record import HarnessRecord
from seatrial_rollout.harness.setting import current_setting
from seatrial_rollout.tito.proxy.agent_session import AgentSession, Terms
from seatrial_rollout.tito.proxy.errors import BudgetSpentError, ContextOverflowError, NoEngineError
from seatrial_rollout.tito.proxy.server import Proxy

_LOOK_SECONDS = 1.0
"""Time between two looks at whether the agent may go on."""


@dataclass(frozen=True, slots=True)
class Door:
    """The proxy as an agent reaches it."""

    url: str
    """Without a path, and without a slash at the end."""
    key: str


class ProxiedHarness(BaseAgent):  # type: ignore[misc]  # Harbor is untyped here
    """Runs an agent whose turns come from the policy of the current `HarnessSetting`, through the proxy.

    The agent ends by itself or is ended: when its charged time is spent, or the proxy has answered it as often as it
    may. In each case `record` holds everything up to that point. What it did in between is its own business: the log
    has every token of it, in as many sequences as it held conversations.
    """

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(mcp_servers=True)
    program: ClassVar[str] = ""
    """The command that has to be there, in the sandbox; empty if the agent runs here and acts on the sandbox."""

    def __init__(self, logs_dir: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(logs_dir, *args, **kwargs)
        self._setting = current_setting()
        request = self._setting.request
        limits = request.harness.limits
        terms = Terms(limits, request.max_steps, request.sampling, request.harness.history)
        self._session = AgentSession(
            self._setting.policy,
            self._setting.engine,
            terms,
            trial_id=request.trial_id,
            on_wait=self._setting.clock.excuse,
        )
        self._ending = Ending(Outcome.CANCELLED, "cut off before the agent ended")

    @override
    def version(self) -> str:
        return ""

    @property
    def record(self) -> HarnessRecord:
        """The run so far."""
        session = self._session
        return HarnessRecord(
            outcome=self._ending.outcome,
            detail=self._ending.detail,
            final_answer=self._ending.final_answer,
            sequences=session.sequences(),
            turns=session.turns(),
            given=session.given(),
            charged_seconds=self._setting.clock.charged,
            num_prompt_tokens=session.num_prompt_tokens,
            num_cached_tokens=session.num_cached_tokens,
        )

    @abstractmethod
    def make_agent(self, door: Door) -> BaseAgent:
        """The agent, as Harbor adapts it, with the proxy as its model."""

    @property
    def max_steps(self) -> int:
        """Turns that the agent may take."""
        return self._setting.request.max_steps

    @property
    def context_length(self) -> int:
        """Tokens that a conversation may hold."""
        return self._setting.policy.context_length

    @property
    def max_turn_tokens(self) -> int:
        """Tokens that a turn may have."""
        return min(self._setting.request.harness.limits.max_turn_tokens, self.context_length)

    @property
    def compacts(self) -> bool:
        """Whether the agent may sum up a conversation that nears the context's end."""
        return self._setting.request.harness.compaction

    def path(self) -> str:
        """Search path of a sandbox in which agents' programs come first."""
        return f"{harness_folder()}/bin:/usr/local/bin:/usr/bin:/bin"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Find the agent's program; images bring it, for a sandbox without a network can install nothing."""
        if not self.program:
            return
        found = await environment.exec(f"command -v {self.program}", env={"PATH": self.path()})
        if found.return_code:
            where = f"neither below {harness_folder()} nor in the sandbox's image"
            what = f"{self.name()} is not installed: {self.program} is {where}"
            self._ending = Ending(Outcome.HARNESS_FAILED, what)
            raise HarnessError(what)

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            async with self._door(environment) as door:
                os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it looks for prices on the internet
                agent = self.make_agent(door)
                await self.prepare(agent, environment)
                self._setting.clock.start()
                error = await self._work(agent, instruction, environment)
                self._setting.clock.end()
                await self.tidy(environment)
            self._ending = self._how_it_ended(error)
        except Exception as exc:
            self._ending = Ending.of_error(exc)
            raise
        finally:
            self._setting.clock.end()
            self.record.report_to(context)
        if self._ending.outcome is Outcome.COMPLETED:
            await leave_answer(self._ending.final_answer, environment, self.logs_dir, self.environment_logs_dir)

    async def prepare(self, agent: BaseAgent, environment: BaseEnvironment) -> None:
        """What the agent needs before it works; installs nothing."""

    async def tidy(self, environment: BaseEnvironment) -> None:
        """Remove what is the harness's own and not the policy's doing."""

    @asynccontextmanager
    async def _door(self, environment: BaseEnvironment) -> AsyncIterator[Door]:
        """The proxy, on the sandbox's own loopback if the agent runs in there."""
        key = secrets.token_urlsafe(24)
        async with Proxy() as proxy:
            proxy.open(key, self._session)
            if not self.program:
                yield Door(proxy.url, key)
                return
            serve_port = getattr(environment, "serve_port", None)
            if serve_port is None:
                raise HarnessError(f"{type(environment).__name__} offers agents inside of it no way to the model")
            async with serve_port(Relay(proxy.url).carry) as port:
                yield Door(f"http://127.0.0.1:{port}", key)

    async def _work(self, agent: BaseAgent, instruction: str, environment: BaseEnvironment) -> Exception | None:
        """Let the agent work while it may; the error that it ended with, if it did."""

        async def run() -> Exception | None:
            try:
                with environment.scoped_exec_env(agent.extra_env):
                    await agent.run(instruction, environment, AgentContext())
            except Exception as exc:  # noqa: BLE001  a foreign program: what its end means is told from the session
                return exc
            return None

        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(run())
            while not work.done() and self._may_go_on():
                await asyncio.wait({work}, timeout=min(_LOOK_SECONDS, self._setting.clock.remaining))
            work.cancel()
        return None if work.cancelled() else work.result()

    def _may_go_on(self) -> bool:
        return not self._setting.clock.is_spent and not isinstance(self._session.refusal, BudgetSpentError)

    def _how_it_ended(self, error: Exception | None) -> Ending:
        """What the agent's end means.

        Raises:
            HarnessError: The infrastructure gave way.
        """
        refusal = self._session.refusal
        if self._setting.clock.is_spent:
            return Ending(Outcome.TIME_EXHAUSTED, f"{self._setting.clock.charged:.1f} s charged")
        match refusal:
            case BudgetSpentError():
                return Ending(Outcome.STEPS_EXHAUSTED, str(refusal))
            case ContextOverflowError():
                return Ending(Outcome.CONTEXT_EXCEEDED, str(refusal))
            case NoEngineError():
                raise EngineFailedError(str(refusal)) from refusal
            case _ if error is not None:
                raise HarnessError(f"{self.name()} ended with {type(error).__name__}: {error}") from (refusal or error)
            case _ if not self._session.num_turns:
                raise HarnessError(f"{self.name()} ended without a turn of the model") from refusal
            case _:
                return Ending(Outcome.COMPLETED, final_answer=self._session.last_content)
