"""What the rollout loop adds to an engine that gives every trial 40 tokens a second.

Each of many seats runs trials back to back: six turns of 60 to 400 tokens with five calls of a tool that answers at
once, some 35 s if nothing but the engine took time. The ideal is that every seat always generates.

    python -m bench.rollout_loop loop    [--in-flight N ...] [--seconds S]
    python -m bench.rollout_loop trials  [--in-flight N ...] [--seconds S]

loop: engine client, session, MCP and the archipelago harness of all trials in one process, their tools in its memory;
no sandbox and no verifier. Added to a turn is all that passes between the time when its tokens are due and the request
for the next turn: both ways through gateway and HTTP, reading the turn, the tool call, writing the next prompt.

trials: the whole path, a process and a sandbox for each trial, real tools over a task of the quickstart, its verifier.

The engine is `paced_engine.py` behind the real gateway.
"""

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import override

from harbor.models.agent.context import AgentContext
from mcp.server import MCPServer

from bench.gateway_overhead import cpu_seconds
from bench.paced_engine import MEAN_TRIAL_SECONDS, NUM_TURNS, TOKENS_A_SECOND, TURN_TOKENS, PacedEngine, paced_engine
from bench.trial_cost import TASK, cpu_group
from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.generation import EngineAddress, Generation, GenerationRequest
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from tests.agents import Harness, MemorySandbox
from tests.chat_models import FAMILIES, ChatModel, write_model
from tests.trial_tasks import make_request

LONGEST_TURN_SECONDS = TURN_TOKENS[1] / TOKENS_A_SECOND + 1.0
_NOTE = "The office keeps its invoices in finance, its orders in operations and what it was asked for in notes. " * 4


@dataclass(frozen=True)
class TimedTurn:
    """One request to the engine, on the clock."""

    asked: float
    num_tokens: int

    @property
    def due(self) -> float:
        """When an ideal engine has answered."""
        return self.asked + self.num_tokens / TOKENS_A_SECOND


class TimedClient(EngineClient):
    """An engine client that notes when it is asked, and for how much."""

    def __init__(self, address: EngineAddress) -> None:
        super().__init__([address], timeout_seconds=600)
        self.turns: list[TimedTurn] = []

    @override
    async def generate(self, request: GenerationRequest) -> Generation:
        asked = SYSTEM_CLOCK.now()
        generation = await super().generate(request)
        self.turns.append(TimedTurn(asked, len(generation.token_ids)))
        return generation


@dataclass(frozen=True)
class Window:
    """The time in which all seats are taken and everything is counted."""

    start: float
    stop: float
    cpu: dict[str, float]
    """CPU seconds used in it, by part."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop - self.start

    def worked(self, turns: list[TimedTurn]) -> float:
        """Seconds of the window in which an ideal engine would have worked on these turns, summed over the turns."""
        return sum(max(0.0, min(turn.due, self.stop) - max(turn.asked, self.start)) for turn in turns)

    def __contains__(self, moment: float) -> bool:
        return self.start <= moment < self.stop


async def occupy(
    in_flight: int, seconds: float, trial: Callable[[int], Awaitable[None]], cpu: Callable[[], dict[str, float]]
) -> Window:
    """Run trials back to back in every seat, the seats taken one by one over a trial's time.

    They run on past the window until every turn that began in it has come back, and are cut off then.
    """

    async def seat(number: int) -> None:
        await SYSTEM_CLOCK.sleep(number * MEAN_TRIAL_SECONDS / in_flight)
        while True:
            await trial(number)

    async with asyncio.TaskGroup() as group:
        seats = [group.create_task(seat(number)) for number in range(in_flight)]
        await SYSTEM_CLOCK.sleep(MEAN_TRIAL_SECONDS)
        start, before = SYSTEM_CLOCK.now(), cpu()
        await SYSTEM_CLOCK.sleep(seconds)
        stop, after = SYSTEM_CLOCK.now(), cpu()
        await SYSTEM_CLOCK.sleep(LONGEST_TURN_SECONDS)
        for task in seats:
            task.cancel()
    return Window(start, stop, {name: after[name] - before[name] for name in after})


def percentiles(values: list[float]) -> str:
    """The median and the 99th percentile, as two cells."""
    return f"{statistics.median(values):.1f} | {statistics.quantiles(values, n=100)[98]:.1f}"


# ------------------------------------------------------------------------------------------------- the loop by itself


@dataclass
class LoopRun:
    """Trials without sandboxes."""

    model: ChatModel
    folder: Path
    engine: PacedEngine
    trials: dict[int, list[list[TimedTurn]]] = field(default_factory=dict)
    """By seat."""

    def __post_init__(self) -> None:
        logging.getLogger().addHandler(logging.NullHandler())  # or MCPServer would have everything printed
        server = MCPServer("filesystem", log_level="ERROR")

        @server.tool()
        def read_text_file(path: str) -> str:
            """Read a file."""
            return f"{path}: {_NOTE}"

        self._servers = {"filesystem": server}

    async def trial(self, seat: int) -> None:
        """One trial, as the trial process runs it between a sandbox's start and its verifier."""
        sandbox = MemorySandbox(self._servers)
        async with TimedClient(self.engine.address) as client:
            self.trials.setdefault(seat, []).append(client.turns)
            agent = Harness(self.model, self.folder / str(seat)).agent(client, sandbox)
            await agent.setup(sandbox)
            await agent.run("Say what the office keeps where.", sandbox, AgentContext())
            if agent.record.outcome is not Outcome.COMPLETED or len(client.turns) != NUM_TURNS:
                raise SystemExit(f"{agent.record.outcome} after {len(client.turns)} turns: {agent.record.detail}")

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far."""
        pids = {"loop": os.getpid(), "gateway": self.engine.gateway_pid, "server": self.engine.server_pid}
        return {name: cpu_seconds(pid) for name, pid in pids.items()}

    async def measure(self, in_flight: int, seconds: float) -> None:
        """Print one row."""
        window = await occupy(in_flight, seconds, self.trial, self.cpu)
        seats = list(self.trials.values())
        turns = [turn for trials in seats for trial in trials for turn in trial]
        num_turns = sum(turn.asked in window for turn in turns)
        added = [
            1e3 * (following.asked - turn.due)
            for trials in seats
            for trial in trials
            for turn, following in pairwise(trial)
            if following.asked in window
        ]
        between = [
            1e3 * (following[0].asked - trial[-1].due)
            for trials in seats
            for trial, following in pairwise(trials)
            if following and following[0].asked in window
        ]
        cpu = {name: 1e3 * used / num_turns for name, used in window.cpu.items()}
        worked = window.worked(turns)
        print(
            f"| {in_flight} | {num_turns / window.seconds:.0f} | {worked * TOKENS_A_SECOND / window.seconds:,.0f}"
            f" | {worked / (in_flight * window.seconds):.1%} | {percentiles(added)} | {percentiles(between)}"
            f" | {cpu['loop']:.2f} | {cpu['loop'] * NUM_TURNS:.1f} | {cpu['gateway']:.2f} |",
            flush=True,
        )


LOOP_HEAD = """\
| trials in flight | turns/s | tokens/s | share of ideal | added ms a turn, p50 | p99 | ms between trials, p50 | p99 \
| CPU ms a turn | CPU ms a trial | gateway's CPU ms a turn |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


# -------------------------------------------------------------------------------------------------- the whole trial


@dataclass
class TrialRun:
    """Trials with all that belongs to them."""

    model: ChatModel
    host: TrialHost
    engine: PacedEngine
    all_cpu: Callable[[], float]
    """CPU seconds of everything below this process."""
    ended: list[tuple[float, Trajectory]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    async def trial(self, _: int) -> None:
        """One trial."""
        trial_id = f"trial-{next(self._numbers)}"
        request = make_request(TASK, trial_id=trial_id, model_path=self.model.path, engines=[self.engine.address])
        trajectory = await self.host.run(request)
        if trajectory.outcome is not Outcome.COMPLETED or len(trajectory.turns) != NUM_TURNS:
            raise SystemExit(f"{trajectory.outcome} after {len(trajectory.turns)} turns: {trajectory.detail}")
        self.ended.append((SYSTEM_CLOCK.now(), trajectory))

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far of all but the engine."""
        engine = cpu_seconds(self.engine.server_pid) + cpu_seconds(self.engine.gateway_pid)
        return {"trials": self.all_cpu() - engine}

    async def measure(self, in_flight: int, seconds: float) -> None:
        """Print one row."""
        window = await occupy(in_flight, seconds, self.trial, self.cpu)
        cpu = window.cpu["trials"]
        trials = [trajectory for ended, trajectory in self.ended if ended in window]
        ideal = [sum(turn.stop - turn.start for turn in trial.turns) / TOKENS_A_SECOND for trial in trials]
        agent = [trial.phase_seconds["agent"] for trial in trials]
        added = [1e3 * (took - least) / NUM_TURNS for took, least in zip(agent, ideal, strict=True)]
        sandbox, verify = (
            statistics.median(trial.phase_seconds[phase] for trial in trials) for phase in ("sandbox", "verify")
        )
        whole = [trial.wall_seconds for trial in trials]
        print(
            f"| {in_flight} | {len(trials) / window.seconds:.1f} | {sum(ideal) / sum(whole):.1%}"
            f" | {sum(ideal) / sum(agent):.1%} | {percentiles(added)} | {1e3 * sandbox:.0f} | {1e3 * verify:.0f}"
            f" | {1e3 * statistics.median(whole) - 1e3 * statistics.median(ideal):.0f}"
            f" | {1e3 * cpu / len(trials):.0f} | {cpu / window.seconds:.2f} |",
            flush=True,
        )


TRIAL_HEAD = """\
| trials in flight | trials/s | share of ideal, whole trial | while the agent runs | added ms a turn, p50 | p99 \
| sandbox ms, p50 | verify ms, p50 | added ms a trial | CPU ms a trial | cores used |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


async def measure_loop(in_flight: list[int], seconds: float) -> None:
    """Print the table of the loop by itself."""
    with tempfile.TemporaryDirectory() as folder:
        model = ChatModel(FAMILIES["hermes"], write_model(FAMILIES["hermes"], Path(folder, "model")))
        print(LOOP_HEAD, flush=True)
        for number in in_flight:
            with paced_engine(model.path, Path(folder)) as engine:
                await LoopRun(model, Path(folder), engine).measure(number, seconds)


async def measure_trials(in_flight: list[int], seconds: float) -> None:
    """Print the table of whole trials."""
    with tempfile.TemporaryDirectory() as folder, cpu_group() as all_cpu:
        model = ChatModel(FAMILIES["hermes"], write_model(FAMILIES["hermes"], Path(folder, "model")))
        print(TRIAL_HEAD, flush=True)
        for number in in_flight:
            host = TrialHost(HostConfig(model_path=model.path))
            try:
                with paced_engine(model.path, Path(folder)) as engine:
                    await host.start()
                    await TrialRun(model, host, engine, all_cpu).measure(number, seconds)
            finally:
                await host.stop()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("loop", "trials"))
    parser.add_argument("--in-flight", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the window that is counted")
    options = parser.parse_args()
    measure = measure_loop if options.part == "loop" else measure_trials
    default = [550] if options.part == "loop" else [64, 128]
    asyncio.run(partial(measure, options.in_flight or default, options.seconds)())


if __name__ == "__main__":
    main()
