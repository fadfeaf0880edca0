"""However a real agent ends, the trial knows why, and keeps every token up to there."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

import httpx
import pytest
from harbor.agents.base import BaseAgent
from harbor.models.agent.context import AgentContext

from seatrial_api.errors import TransientError
from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessLimits, HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.environment.interface import ExecResult
from seatrial_rollout.harness.errors import EngineFailedError, HarnessError
from seatrial_rollout.harness.mini_swe import MiniSweAgent
from seatrial_rollout.harness.proxied import Door, ProxiedHarness
from seatrial_rollout.harness.setting import HarnessSetting
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.session import GeneratesTokens
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.request import TrialRequest
from tests.agents import MemorySandbox, stored
from tests.chat_models import ChatModel
from tests.clocks import HeldClock
from tests.scripted_engine import ScriptedEngine

type Work = Callable[["Model"], Awaitable[None]]


class AgentError(Exception):
    """What a foreign agent raises."""


@dataclass
class Model:
    """The policy as a foreign agent sees it."""

    client: httpx.AsyncClient

    async def ask(self, content: str = "What does the lamp cost?") -> httpx.Response:
        """Ask one question."""
        body = {"model": "policy", "messages": [{"role": "user", "content": content}]}
        return await self.client.post("/v1/chat/completions", json=body)


class Foreign(BaseAgent):  # type: ignore[misc]  # Harbor is untyped here
    """An agent that somebody else wrote."""

    def __init__(self, logs_dir: Path, door: Door, work: Work) -> None:
        super().__init__(logs_dir)
        self._door = door
        self._work = work

    @staticmethod
    @override
    def name() -> str:
        return "foreign"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: Any) -> None:
        pass

    @override
    async def run(self, instruction: str, environment: Any, context: AgentContext) -> None:
        headers = {"Authorization": f"Bearer {self._door.key}"}
        async with httpx.AsyncClient(base_url=self._door.url, headers=headers, timeout=60) as client:
            await self._work(Model(client))


class ForeignHarness(ProxiedHarness):
    """Runs it."""

    work: Work

    @staticmethod
    @override
    def name() -> str:
        return "foreign"

    @override
    def make_agent(self, door: Door) -> BaseAgent:
        return Foreign(self.logs_dir, door, self.work)


class Sandbox(MemorySandbox):
    """A sandbox without programs."""

    async def exec(self, command: str, **_: Any) -> ExecResult:
        """Find nothing."""
        return ExecResult("", command, 127)

    @contextmanager
    def scoped_exec_env(self, _: dict[str, str]) -> Iterator[None]:
        """Nothing is run."""
        yield


@dataclass
class Trials:
    """Runs foreign agents on a policy."""

    model: ChatModel
    folder: Path

    def harness[H: ProxiedHarness](
        self, kind: type[H], engine: GeneratesTokens, clock: TrialClock | None = None, context_length: int = 4_000
    ) -> H:
        """A harness in its setting."""
        request = TrialRequest(
            trial_id="trial-1",
            group_id="group-1",
            purpose="Train",
            task="task",
            task_path=self.folder,
            domain="office",
            start_version=0,
            harness=HarnessSpec(name="opencode", limits=HarnessLimits()),
            sampling=Sampling(),
            max_steps=2,
            sandbox=SandboxSpec(),
            policy=Policy(self.model.path, context_length),
        )
        with HarnessSetting(request, engine, clock or TrialClock(3600.0)).current():
            return kind(self.folder / "logs")

    async def run(
        self, work: Work, engine: GeneratesTokens | None = None, *, sandbox: Sandbox | None = None, **options: Any
    ) -> ForeignHarness:
        """A harness whose agent has worked; what it leaves is token-exact."""
        harness = self.harness(ForeignHarness, engine or self.engine(), **options)
        harness.work = work
        try:
            await harness.run("What does the lamp cost?", sandbox or Sandbox({}), AgentContext())
        finally:
            assert verify(stored(harness.record), self.model.template) == []
        return harness

    def engine(self) -> ScriptedEngine:
        """One that always says the same."""
        return ScriptedEngine(self.model.template, iter(lambda: "It costs 7.", ""))


@pytest.fixture
def trials(model: ChatModel, tmp_path: Path) -> Trials:
    return Trials(model, tmp_path)


async def test_an_agent_that_ends_by_itself_has_completed_and_leaves_its_last_words(trials: Trials) -> None:
    async def work(model: Model) -> None:
        answer = await model.ask()
        assert answer.json()["choices"][0]["message"]["content"] == "It costs 7."

    sandbox = Sandbox({})
    record = (await trials.run(work, sandbox=sandbox)).record
    assert (record.outcome, record.final_answer, len(record.turns)) == (Outcome.COMPLETED, "It costs 7.", 1)
    assert record.num_prompt_tokens == record.turns[0].start
    assert sandbox.uploads == {"/logs/agent/final_answer.txt": "It costs 7."}


async def test_an_agent_that_never_stops_asking_is_ended_at_its_last_step(trials: Trials) -> None:
    async def work(model: Model) -> None:
        for number in range(100):
            await model.ask(f"{number}?")
        await asyncio.Event().wait()

    record = (await trials.run(work)).record
    assert (record.outcome, len(record.turns)) == (Outcome.STEPS_EXHAUSTED, 2)


async def test_an_agent_whose_time_is_spent_is_ended(trials: Trials) -> None:
    clock = HeldClock()

    async def work(model: Model) -> None:
        await model.ask()
        clock.advance(100)
        await asyncio.Event().wait()

    record = (await trials.run(work, clock=TrialClock(60.0, clock))).record
    assert (record.outcome, record.charged_seconds, len(record.turns)) == (Outcome.TIME_EXHAUSTED, 100, 1)


async def test_a_full_context_is_the_models_doing_whatever_the_agent_makes_of_it(trials: Trials) -> None:
    async def work(model: Model) -> None:
        answer = await model.ask("word " * 500)
        raise AgentError(answer.text)

    record = (await trials.run(work, context_length=300)).record
    assert (record.outcome, record.turns) == (Outcome.CONTEXT_EXCEEDED, [])


async def test_engines_that_are_down_are_infrastructure(trials: Trials) -> None:
    class Down:
        async def generate(self, request: GenerationRequest) -> Generation:
            raise TransientError(f"no engine for {len(request.token_ids)} tokens")

    async def work(model: Model) -> None:
        assert (await model.ask()).status_code == 503

    with pytest.raises(EngineFailedError, match="no engine"):
        await trials.run(work, Down())


async def test_an_agent_that_breaks_is_infrastructure(trials: Trials) -> None:
    async def work(model: Model) -> None:
        await model.ask()
        raise AgentError("out of luck")

    with pytest.raises(HarnessError, match="foreign ended with AgentError: out of luck"):
        await trials.run(work)


ECHO = [{"role": "user", "content": "What does the lamp cost?"}, {"role": "assistant", "content": "It costs 7."}]
"""A conversation that has nothing to answer."""


async def test_an_agent_that_breaks_on_a_refusal_is_told_with_it(trials: Trials) -> None:
    async def work(model: Model) -> None:
        await model.ask()
        answer = await model.client.post("/v1/chat/completions", json={"messages": ECHO})
        answer.raise_for_status()

    with pytest.raises(HarnessError, match="foreign ended with HTTPStatusError") as error:
        await trials.run(work)
    assert "must end with a user" in str(error.value.__cause__)


async def test_a_refusal_that_an_agent_gets_over_ends_nothing(trials: Trials) -> None:
    async def work(model: Model) -> None:
        await model.ask()
        await model.client.post("/v1/chat/completions", json={"messages": ECHO})

    assert (await trials.run(work)).record.outcome is Outcome.COMPLETED


async def test_an_agent_that_asks_for_nothing_has_not_worked(trials: Trials) -> None:
    async def work(_: Model) -> None:
        pass

    with pytest.raises(HarnessError, match="without a turn"):
        await trials.run(work)


async def test_a_program_that_is_missing_is_named_before_the_agent_works(trials: Trials) -> None:
    harness = trials.harness(MiniSweAgent, trials.engine())
    with pytest.raises(HarnessError, match=r"mini-swe-agent is neither below .* nor in the sandbox's image"):
        await harness.setup(Sandbox({}))
    assert harness.record.outcome is Outcome.HARNESS_FAILED


async def test_a_sandbox_that_opens_no_port_is_no_place_for_an_agent(trials: Trials) -> None:
    harness = trials.harness(MiniSweAgent, trials.engine())
    with pytest.raises(HarnessError, match="no way to the model"):
        await harness.run("What?", Sandbox({}), AgentContext())
