"""How much of a real vLLM's tokens per second is left when our loop drives it: all ways in one run, in turns.

    OMP_NUM_THREADS=1 python -m bench.engine_share [--in-flight N ...] [--rounds N] [--seconds S]

The quickstart's policy, which is as small as a policy can be, does the quickstart's tasks. So the engine is fast, a
turn is some 20 tokens, and the loop has to do the most per token that it ever has to.

vLLM alone     a client keeps N requests at vLLM's own token route and does not read the answers. They are the prompts
               and lengths that our loop asked for just before, so that the engine does the same work.
with our loop  N trials at once: gateway, engine client, session, harness and tool servers, all in this process.
whole trials   the same with a process, a sandbox and a verifier for each trial.

Tokens are counted by vLLM itself. No round finds another's prompts in the prefix cache.
"""

import argparse
import asyncio
import contextlib
import logging
import shutil
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, override

import msgspec
import structlog
from harbor.models.agent.context import AgentContext

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.spec.rollout import EngineSpec
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.control import WeightFiles
from seatrial_rollout.engine.engine import Engine
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.engine.launch import ServerLaunch
from seatrial_rollout.engine.wire import vllm_body
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import Policy
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_sandbox.servers import BUILDERS
from seatrial_sandbox.workspace import Workspace
from tests.agents import Harness, MemorySandbox
from tests.chat_models import FAMILIES, ChatModel
from tests.trial_tasks import make_request

type Job = Callable[[], Awaitable[object]]

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart"
NUM_TASKS = 64
CONTEXT_LENGTH = 1024
LIMITS: dict[str, Any] = {
    "max_turn_tokens": 64,
    "tool_result": {"max_chars": 600, "head_chars": 400, "tail_chars": 100},
}
"""As in the quickstart's manifest."""
WARM_SECONDS = 4.0
MIN_SECONDS = 2.0
LOAD_SECONDS = 60.0


class RecordingClient(EngineClient):
    """An engine client that keeps what it is asked for, and the number of tokens that came back."""

    def __init__(self, engine: Engine, asked: list[tuple[GenerationRequest, int]]) -> None:
        super().__init__([engine.address], timeout_seconds=120)
        self._asked = asked

    @override
    async def generate(self, request: GenerationRequest) -> Generation:
        prompt = list(request.token_ids)
        generation = await super().generate(request)
        self._asked.append((replace(request, token_ids=prompt), len(generation.token_ids)))
        return generation


@dataclass
class Bench:
    """One engine and three ways to drive it."""

    engine: Engine
    model: Path
    folder: Path
    host: TrialHost
    seconds: float
    tasks: list[Path]
    asked: list[tuple[GenerationRequest, int]] = field(default_factory=list)
    """What our loop asked for in its last round."""
    _numbers: Iterator[int] = field(default_factory=partial(count, 1))

    def __post_init__(self) -> None:
        self._sandboxes = [self._sandbox(task) for task in self.tasks]

    async def vllm_alone(self, in_flight: int) -> float:
        """The last round's requests again, at vLLM's own route."""
        salt = f"alone-{next(self._numbers)}"
        return await self._rate(in_flight, [partial(self._post, _body(*asked, salt)) for asked in self.asked])

    async def with_our_loop(self, in_flight: int) -> float:
        """Trials in this process."""
        await self._forget()
        self.asked.clear()
        work = zip(self.tasks, self._sandboxes, strict=True)
        return await self._rate(in_flight, (partial(self._agent, *pair) for pair in cycle(work)))

    async def whole_trials(self, in_flight: int) -> float:
        """Trials in processes and sandboxes."""
        await self._forget()
        return await self._rate(in_flight, (partial(self._trial, task) for task in cycle(self.tasks)))

    async def _rate(self, in_flight: int, jobs: Iterable[Job]) -> float:
        """Tokens per second with so many jobs at once, until the time is up or a seat finds no job left."""
        left = iter(jobs)
        is_over = asyncio.Event()

        async def seat() -> None:
            for job in left:
                await job()
                if is_over.is_set():
                    return
            is_over.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(seat())
            await SYSTEM_CLOCK.sleep(WARM_SECONDS)
            before, begun = await self._num_tokens(), SYSTEM_CLOCK.now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await is_over.wait()
            after, ended = await self._num_tokens(), SYSTEM_CLOCK.now()
            is_over.set()
        if ended - begun < MIN_SECONDS:
            raise SystemExit(f"the work ran out after {ended - begun:.1f} s: give more --seconds")
        return (after - before) / (ended - begun)

    async def _forget(self) -> None:
        """Have the engine load its weights anew, after which it knows no prompt."""
        await self.engine.load_files(self.model, next(self._numbers), clear_kv_cache=True, timeout_seconds=LOAD_SECONDS)

    async def _num_tokens(self) -> int:
        return (await self.engine.metrics()).generated_tokens_total

    async def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        async with self.engine.server.session.post("/inference/v1/generate", data=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    async def _agent(self, task: Path, sandbox: MemorySandbox) -> None:
        harness = Harness(ChatModel(FAMILIES["hermes"], self.model), self.folder / task.name)
        async with RecordingClient(self.engine, self.asked) as client:
            agent = harness.agent(client, sandbox, context_length=CONTEXT_LENGTH, max_steps=8, limits=LIMITS)
            await agent.setup(sandbox)
            await agent.run((task / "instruction.md").read_text(), sandbox, AgentContext())

    async def _trial(self, task: Path) -> None:
        trial_id, policy = f"trial-{next(self._numbers)}", Policy(self.model, CONTEXT_LENGTH)
        request = make_request(task, trial_id=trial_id, engines=[self.engine.address], **LIMITS)
        trajectory = await self.host.run(replace(request, policy=policy))
        if trajectory.outcome.is_infrastructure:
            raise SystemExit(f"{trajectory.outcome}: {trajectory.detail}")

    def _sandbox(self, task: Path) -> MemorySandbox:
        """A task's world behind real tool servers. Without `code`, which belongs inside of walls."""
        world = Path(shutil.copytree(task / "environment" / "files", self.folder / task.name / "world"))
        return MemorySandbox({name: BUILDERS[name](Workspace(world)) for name in ("filesystem", "sheets")})


def _body(request: GenerationRequest, num_tokens: int, salt: str) -> bytes:
    """A request that ends after so many tokens, and not before."""
    body = msgspec.json.decode(vllm_body(replace(request, max_tokens=num_tokens, stop_token_ids=[]), salt))
    body["sampling_params"]["ignore_eos"] = True
    return msgspec.json.encode(body)


@asynccontextmanager
async def running_bench(seconds: float) -> AsyncIterator[Bench]:
    """Engine and trial host, on a copy of the policy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = Path(shutil.copytree(QUICKSTART / "policy", folder / "policy"))
        launch = ServerLaunch(
            engine_id="bench",
            model_path=model,
            dtype="float32",
            context_length=CONTEXT_LENGTH,
            spec=EngineSpec(max_num_seqs=128, kv_cache_gib=0.5),
            work_dir=folder,
        )
        engine = Engine(launch, token="bench", weights=WeightFiles(0, model))  # noqa: S106  of this bench
        host = TrialHost(HostConfig(model_path=model))
        try:
            await engine.start("127.0.0.1")
            await host.start()
            tasks = sorted((QUICKSTART / "tasks" / "train").iterdir())[:NUM_TASKS]
            yield Bench(engine, model, folder, host, seconds, tasks)
        finally:
            await host.stop()
            await engine.stop()


async def measure(in_flight: list[int], rounds: int, seconds: float) -> None:
    """Print the table: medians over the rounds."""
    async with running_bench(seconds) as bench:
        print("| in flight | vLLM alone, tokens/s | with our loop | share | whole trials | share |", flush=True)
        print("| ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for number in in_flight:
            rates = [
                (await bench.with_our_loop(number), await bench.vllm_alone(number), await bench.whole_trials(number))
                for _ in range(rounds)
            ]
            ours, alone, whole = map(statistics.median, zip(*rates, strict=True))
            print(
                f"| {number} | {alone:,.0f} | {ours:,.0f} | {ours / alone:.0%} | {whole:,.0f} | {whole / alone:.0%} |",
                flush=True,
            )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0, help="at most, for each way and round")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # or MCPServer would have everything printed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(measure(options.in_flight, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
