"""How five losses bear staleness: DPPO, GLM-5, PPO-clip, TIS and MIS on the quickstart's world.

    make tasks
    OMP_NUM_THREADS=1 python -m bench.staleness_losses [--seeds N] [--steps N] [--out FOLDER] [--plots-only]

The policy, its tasks, tools and verifiers, agent loop, sessions, losses and the torch backend are the quickstart's own,
in one process: tools are called in memory, and a small engine (`lockstep_engine.py`) stands in for vLLM; there is no
Harbor and no sandbox. Each step trains one batch of 8 groups of 8 trials with one optimiser step at a rate that
stays after its warm-up (the quickstart: 16 groups, two optimiser steps, a falling rate).

Staleness is imposed: step t trains trials of the weights of step max(0, t - S). So it grows from 0 to S over the first
steps and then stays. At S = 0 every ratio is 1 and all losses have one gradient, so one of them is run. A seed decides
the tasks of each step and what its trials draw, for all losses alike; batches of the initial policy are shared.

Each run that is done is added to FOLDER/results.json, and one that is there is not run again; plots lie beside it.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import torch
import vl_convert
from mcp.client._memory import InMemoryTransport
from torch import Tensor

from bench.lockstep_engine import LockstepEngine
from seatrial.manifest import load_run
from seatrial_api.clock import Deadline
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.algorithm import LossSpec
from seatrial_api.spec.harness import Sampling
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.harness.react import ReActLoop
from seatrial_rollout.harness.tool_server import Endpoint, await_offers, running
from seatrial_rollout.harness.toolbox import Toolbox
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.session import Session
from seatrial_sandbox.servers import BUILDERS
from seatrial_sandbox.workspace import Workspace
from seatrial_trainer.policy.minibatch import build_minibatches
from seatrial_trainer.policy.schedule import learning_rate
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "examples" / "quickstart"
OUT = ROOT / "docs" / "decisions" / "0237"
SERVERS = ("filesystem", "sheets", "code")
"""In the order of `task.toml`, which is the order in which the policy sees the tools."""

LOSSES = {
    "dppo": LossSpec(name="dppo", low=0.15, high=0.15),
    "glm5": LossSpec(name="glm5", low=0.2, high=0.28),
    "ppo-clip": LossSpec(name="ppo-clip", low=0.2, high=0.28),
    "tis": LossSpec(name="tis", ratio_cap=2.0),
    "mis": LossSpec(name="mis", low=0.5, high=4.0),
}
"""With bounds that are not tuned: the recipe's for DPPO, DAPO's for PPO-clip and GLM-5, IcePop's for MIS."""
STALENESS = (0, 12, 4)
NUM_GROUPS, GROUP_SIZE = 8, 8
NUM_HELD_OUT = 64
EVALUATE_EVERY = 4
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a two-sided interval of 95 %, by the number of seeds."""
MEASURES = {
    "clipped": "clipped share",
    "mismatch_kl": "mismatch KL, nats",
    "grad_norm": "gradient norm",
    "entropy": "entropy, nats",
}
SECONDS = 1e6
"""Nobody waits for anything here but the processor."""

type Weights = dict[str, Tensor]
type Group = list[Trajectory]


@dataclass(frozen=True)
class Step:
    """One optimiser step."""

    reward: float
    """Mean of the trials that it trains."""
    grad_norm: float
    entropy: float
    clipped: float
    """Share of the tokens."""
    mismatch_kl: float


@dataclass(frozen=True)
class Run:
    """One loss under one bound and seed."""

    loss: str
    staleness: int
    seed: int
    steps: list[Step]
    held_out: dict[int, float]
    """Share of the held-out tasks solved, by the number of optimiser steps before."""

    @property
    def key(self) -> tuple[str, int, int]:
        """What distinguishes it."""
        return self.loss, self.staleness, self.seed


def tasks_of(split: str) -> list[Path]:
    """Task folders, in the order of their numbers."""
    found = sorted((QUICKSTART / "tasks" / split).iterdir())
    return found or exit(f"no tasks in {QUICKSTART}: run its make_tasks.py")  # noqa: PLR1722


# ---------------------------------------------------------------------------------------------------------- the world


@dataclass(frozen=True)
class Desk:
    """A folder and the real tools over it; one trial after another has it to itself."""

    folder: Path
    toolbox: Toolbox


@asynccontextmanager
async def desks(root: Path, count: int, spec: RLRunSpec) -> AsyncIterator[list[Desk]]:
    """Some desks, whose servers run in this process."""
    async with AsyncExitStack() as stack:
        made = []
        for number in range(count):
            folder = root / str(number)
            endpoints = [
                Endpoint(name, partial(InMemoryTransport, BUILDERS[name](Workspace(folder)))) for name in SERVERS
            ]
            servers = await stack.enter_async_context(running(await await_offers(endpoints, Deadline.after(SECONDS))))
            made.append(Desk(folder, Toolbox(servers, spec.harness.limits.tool_result)))
        yield made


@dataclass(frozen=True)
class World:
    """What trials need, whatever they are for."""

    spec: RLRunSpec
    engine: LockstepEngine
    desks: list[Desk]

    async def run(self, tasks: Sequence[Path], trial_ids: Sequence[str]) -> list[Trajectory]:
        """A trial of each task, at most as many at once as there are desks."""
        done = []
        for start in range(0, len(tasks), len(self.desks)):
            part = slice(start, start + len(self.desks))
            with self.engine.trials(list(trial_ids[part])):
                async with asyncio.TaskGroup() as group:
                    running_ = [
                        group.create_task(self._trial(*trial))
                        for trial in zip(tasks[part], trial_ids[part], self.desks, strict=False)
                    ]
            done += [trial.result() for trial in running_]
        return done

    async def _trial(self, task: Path, trial_id: str, desk: Desk) -> Trajectory:
        shutil.rmtree(desk.folder, ignore_errors=True)
        shutil.copytree(task / "environment" / "files", desk.folder)
        policy = Policy(QUICKSTART / "policy", self.spec.model.context_length.train)
        limits = self.spec.harness.limits.model_copy(
            update={"engine_call_timeout_seconds": SECONDS, "tool_call_timeout_seconds": SECONDS}
        )
        session = Session(policy, self.engine, Sampling(), limits, trial_id=trial_id)
        clock = TrialClock(SECONDS)
        clock.start()
        loop = ReActLoop(session, desk.toolbox, limits, clock, max_steps=limits.max_steps)
        try:
            ending = await loop.run([{"role": "user", "content": (task / "instruction.md").read_text()}])
        finally:
            self.engine.leave()
        return Trajectory(
            trial_id=trial_id,
            group_id=trial_id.rpartition(".")[0],
            task=task.name,
            domain=tomllib.loads((task / "task.toml").read_text())["metadata"]["domain"],
            purpose="Train",
            harness="archipelago",
            start_version=0,
            outcome=ending.outcome,
            reward=_grade(task, desk.folder),
            sequences=session.sequences(),
            turns=loop.turns(),
            given=session.given(),
        )


def _grade(task: Path, workspace: Path) -> float:
    """Run the task's own verifier."""
    with tempfile.TemporaryDirectory() as logs:
        environment = {"PATH": os.environ["PATH"], "WORKSPACE": str(workspace), "LOGS": logs}
        subprocess.run(["bash", task / "tests" / "test.sh"], env=environment, check=True, timeout=SECONDS)
        return float(json.loads((Path(logs) / "reward.json").read_text())["reward"])


# --------------------------------------------------------------------------------------------------------- comparison


class Comparison:
    """Runs that share their world and what the initial policy did in it."""

    def __init__(self, world: World, num_steps: int) -> None:
        self._world = world
        self._num_steps = num_steps
        self._first_batches: dict[tuple[int, int], list[Group]] = {}
        self._first_held_out: float | None = None

    async def run(self, loss: str, staleness: int, seed: int) -> Run:
        """Train from the beginning."""
        algorithm = self._world.spec.algorithm.model_copy(
            update={
                "loss": LOSSES[loss],
                "minibatch_size": NUM_GROUPS,
                "optimizer": self._world.spec.algorithm.optimizer.model_copy(update={"schedule": "Constant"}),
            }
        )
        backend = TorchBackend(PolicySetup.from_run(self._world.spec), QUICKSTART / "policy")
        weights = [_copy_of(backend)]
        steps: list[Step] = []
        held_out = {0: await self._held_out(weights[0], 0)}
        for number in range(self._num_steps):
            version = max(0, number - staleness)
            groups = await self._batch(weights[version], version, seed, number)
            (minibatch,) = build_minibatches(groups, algorithm, [])
            stats = backend.forward_backward(minibatch)
            done = backend.optim_step(learning_rate(number, self._num_steps, algorithm.optimizer))
            reward = statistics.fmean(t.reward or 0.0 for group in groups for t in group)
            steps.append(Step(reward, done.grad_norm, stats.entropy, stats.clipped_fraction, stats.mismatch_kl))
            weights.append(_copy_of(backend))
            if (number + 1) % EVALUATE_EVERY == 0:
                held_out[number + 1] = await self._held_out(weights[-1], number + 1)
        return Run(loss, staleness, seed, steps, held_out)

    async def _batch(self, weights: Weights, version: int, seed: int, number: int) -> list[Group]:
        if version == 0 and (seed, number) in self._first_batches:
            return self._first_batches[seed, number]
        drawn = random.Random(seed).sample(tasks_of("train"), NUM_GROUPS * self._num_steps)  # noqa: S311  reproducible
        tasks = drawn[number * NUM_GROUPS : (number + 1) * NUM_GROUPS]
        trial_ids = [f"{seed}.{number}.{group}.{trial}" for group in range(NUM_GROUPS) for trial in range(GROUP_SIZE)]
        self._world.engine.load(weights, version)
        trials = await self._world.run([task for task in tasks for _ in range(GROUP_SIZE)], trial_ids)
        groups = [trials[start : start + GROUP_SIZE] for start in range(0, len(trials), GROUP_SIZE)]
        if version == 0:
            self._first_batches[seed, number] = groups
        return groups

    async def _held_out(self, weights: Weights, version: int) -> float:
        if version == 0 and self._first_held_out is not None:
            return self._first_held_out
        tasks = tasks_of("held_out")[:NUM_HELD_OUT]
        self._world.engine.load(weights, version)
        trials = await self._world.run(tasks, [f"held-out.{task.name}" for task in tasks])
        solved = statistics.fmean(trial.reward == 1 for trial in trials)
        if version == 0:
            self._first_held_out = solved
        return solved


def _copy_of(backend: TorchBackend) -> Weights:
    return {name: weight.clone() for name, weight in backend.export_weights()}


async def compare(num_seeds: int, num_steps: int, out: Path) -> None:
    """Do the runs that are not done."""
    spec = load_run(QUICKSTART / "run.yaml").spec
    done = read(out)
    wanted = [
        (loss, staleness, seed)
        for staleness in STALENESS
        for seed in range(num_seeds)
        for loss in (LOSSES if staleness else ["dppo"])
    ]
    engine = LockstepEngine(QUICKSTART / "policy", spec.model.context_length.train, spec.harness.limits.max_turn_tokens)
    with tempfile.TemporaryDirectory() as folder:
        async with desks(Path(folder), NUM_GROUPS * GROUP_SIZE, spec) as made:
            comparison = Comparison(World(spec, engine, made), num_steps)
            for key in wanted:
                if key not in {run.key for run in done}:
                    done.append(await comparison.run(*key))
                    write(done, out)
                    print(*key, done[-1].held_out, flush=True)


def read(out: Path) -> list[Run]:
    """The runs that are done."""
    path = out / "results.json"
    stored: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return [
        Run(
            **run
            | {
                "steps": [Step(**step) for step in run["steps"]],
                "held_out": {int(number): share for number, share in run["held_out"].items()},
            }
        )
        for run in stored
    ]


def write(runs: Sequence[Run], out: Path) -> None:
    """Keep the runs, to four digits, one a line."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_rounded(asdict(run))) for run in runs]
    (out / "results.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list():
            return [_rounded(item) for item in value]
    return value


# ------------------------------------------------------------------------------------------------------ what came out


def draw(runs: Sequence[Run], out: Path) -> None:
    """Write the plots."""
    held_out = [
        {"step": number, "value": share, "loss": run.loss, "staleness": run.staleness}
        for run in runs
        for number, share in run.held_out.items()
    ]
    _save(_panels(held_out, "held-out tasks solved", share_y=True), out / "held-out.svg")
    rows = []
    for field, title in MEASURES.items():
        points = [
            {"step": number + 1, "value": getattr(step, field), "loss": run.loss, "staleness": run.staleness}
            for run in runs
            for number, step in enumerate(run.steps)
        ]
        rows.append(_panels(points, title, share_y=False))
    _save(alt.vconcat(*rows), out / "training.svg")


def _panels(points: list[dict[str, Any]], title: str, *, share_y: bool) -> Any:
    """One panel for each staleness: mean over the seeds as a line, lowest to highest seed as a band."""
    x = alt.X("step:Q", title="optimiser steps", axis=alt.Axis(tickMinStep=1))
    colour = alt.Color("loss:N", sort=list(LOSSES), title=None, legend=alt.Legend(symbolOpacity=1))
    panels = []
    for staleness in sorted({point["staleness"] for point in points}):
        data = alt.Data(values=[point for point in points if point["staleness"] == staleness])
        base = alt.Chart(data, title=f"S = {staleness}", width=230, height=150).encode(x=x, color=colour)
        line = base.mark_line().encode(y=alt.Y("mean(value):Q", title=title))
        band = base.mark_area(opacity=0.12).encode(y=alt.Y("min(value):Q"), y2="max(value):Q")
        panels.append(band + line)
    together = alt.hconcat(*panels)
    return together.resolve_scale(y="shared") if share_y else together


def _save(chart: Any, path: Path) -> None:
    quiet = chart.configure(aria=False, background="white")  # a label on every mark would be most of the file
    path.write_text(vl_convert.vegalite_to_svg(quiet.to_dict()) + "\n")


def table(runs: Sequence[Run]) -> str:
    """What was solved at the end, and the difference to DPPO under the same seeds, with intervals over the seeds."""
    rows = [
        "| S | loss | held-out solved | less DPPO's | clipped | mismatch KL | largest gradient norm |",
        "|---" * 7 + "|",
    ]
    for staleness in sorted({run.staleness for run in runs}):
        final = {run.key: 100 * run.held_out[max(run.held_out)] for run in runs if run.staleness == staleness}
        for loss in LOSSES:
            mine = [run for run in runs if (run.loss, run.staleness) == (loss, staleness)]
            if not mine:
                continue
            differences = [final[run.key] - final["dppo", staleness, run.seed] for run in mine]
            last = [run.steps[-1] for run in mine]
            norm = max(step.grad_norm for run in mine for step in run.steps)
            rows.append(
                f"| {staleness} | `{loss}` | {_interval([final[run.key] for run in mine])} % "
                f"| {'' if loss == 'dppo' else _interval(differences)} "
                f"| {statistics.fmean(step.clipped for step in last):.1%} "
                f"| {statistics.fmean(step.mismatch_kl for step in last):.2g} | {norm:.2f} |"
            )
    return "\n".join(rows)


def _interval(values: Sequence[float]) -> str:
    """Mean over the seeds with its 95 % interval, Student's t."""
    if len(values) < 2:
        return f"{values[0]:.0f}"
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.0f} ± {half:.0f}"


def main() -> None:
    """Compare, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--plots-only", action="store_true", help="draw what FOLDER/results.json holds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.plots_only:
        asyncio.run(compare(arguments.seeds, arguments.steps, arguments.out))
    runs = read(arguments.out)
    draw(runs, arguments.out)
    print(table(runs))


if __name__ == "__main__":
    main()
