"""Tries a world's tasks in every way that says something about the world instead of a model."""

import asyncio
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.inspection.attempts import ATTEMPTS, as_solution
from seatrial_rollout.inspection.contamination import find_contamination
from seatrial_rollout.inspection.faults import Fault, FaultKind, InspectionReport
from seatrial_rollout.inspection.leaks import find_leaks
from seatrial_rollout.inspection.tool_faults import PROBER, find_tool_faults
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_rollout.trials.tasks import TaskRef

_PURPOSE = "inspection"


class RunsTrials(Protocol):
    """Whoever runs trials, as a `TrialHost` does."""

    async def run(self, request: TrialRequest) -> Trajectory:
        """Run one trial to its end; whatever happens to it is told in the trajectory."""
        ...


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked of a world; as `WorldImage.spec.inspection` has it."""

    repeats: int = 3
    """Times that the solution and doing nothing are graded, to find verdicts that differ."""
    contamination_ngram: int = 0
    """Length in words of the runs that no instruction may share with a corpus; 0 does not look."""
    corpora: Sequence[tuple[str, str]] = ()
    """Name and text of what tasks must not have come from."""


@dataclass
class Inspector:
    """Inspects one world.

        tasks ──▶ solution x k, nothing x k ──▶ SolutionFails, IdlePasses, Flaky
              ├─▶ lazy agents (attempts.py) ──▶ Tampered
              ├─▶ every tool, called wrongly ─▶ Tool
              └─▶ files, words ───────────────▶ Leaked, Contaminated

    Trials run at once up to a bound; a trial that infrastructure ends says nothing about its task but `Untried`.
    """

    world: str
    host: RunsTrials
    sandbox: SandboxSpec
    num_trials: int
    """Trials at once."""
    questions: Questions = Questions()
    clock: Clock = SYSTEM_CLOCK
    _ran: int = 0
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Have as many places as there may be trials."""
        self._places = asyncio.Semaphore(self.num_trials)

    async def inspect(self, tasks: Sequence[TaskRef]) -> InspectionReport:
        """Try every task and tell all that was found, by task."""
        started = self.clock.now()
        probed = _one_of_each_toolset(tasks)
        async with asyncio.TaskGroup() as group:
            inspected = [group.create_task(self._inspect(task, probes_tools=task in probed)) for task in tasks]
        faults = [fault for one in inspected for fault in one.result()]
        faults += self._contaminated(tasks)
        return InspectionReport(self.world, len(tasks), self._ran, self.clock.now() - started, faults)

    async def _inspect(self, task: TaskRef, *, probes_tools: bool) -> list[Fault]:
        leaks = [Fault(FaultKind.LEAKED, task.name, leak) for leak in await asyncio.to_thread(_leaks, task)]
        idle = await self._repeat(task, TrialMode.NO_OP)
        solved = await self._repeat(task, TrialMode.ORACLE) if task.has_solution else []
        faults = [*_judge_solution(task, solved), *_judge_idle(task, idle)]
        if probes_tools:
            faults += find_tool_faults(task.name, await self._run(task, task.path, TrialMode.AGENT, "tools"))
        if not solved:
            faults.append(Fault(FaultKind.SOLUTION_FAILS, task.name, "there is no solution/solve.sh to try"))
        highest = max((one.reward for one in idle if one.reward is not None), default=0.0)
        return [*faults, *await self._tamper(task, highest), *leaks]

    async def _repeat(self, task: TaskRef, mode: TrialMode) -> list[Trajectory]:
        async with asyncio.TaskGroup() as group:
            tries = [
                group.create_task(self._run(task, task.path, mode, f"{mode.value.lower()}-{number}"))
                for number in range(self.questions.repeats)
            ]
        return [one.result() for one in tries]

    async def _tamper(self, task: TaskRef, allowed: float) -> list[Fault]:
        with tempfile.TemporaryDirectory(prefix="seatrial-inspection-") as folder:
            async with asyncio.TaskGroup() as group:
                tried = {
                    name: group.create_task(self._attempt(task, Path(folder, str(number)), script))
                    for number, (name, script) in enumerate(ATTEMPTS.items())
                }
        return [fault for name, one in tried.items() for fault in _judge_attempt(task, name, one.result(), allowed)]

    async def _attempt(self, task: TaskRef, folder: Path, script: str) -> Trajectory:
        await asyncio.to_thread(_copy_with_solution, task.path, folder, as_solution(script))
        return await self._run(task, folder, TrialMode.ORACLE, f"attempt-{folder.name}")

    async def _run(self, task: TaskRef, path: Path, mode: TrialMode, name: str) -> Trajectory:
        request = TrialRequest(
            trial_id=f"inspect-{task.name}-{name}",
            group_id=task.name,
            purpose=_PURPOSE,
            task=task.name,
            task_path=path,
            domain=task.domain,
            start_version=0,
            harness=HarnessSpec(name=PROBER),
            sampling=Sampling(),
            max_steps=1,
            sandbox=self.sandbox,
            mode=mode,
        )
        async with self._places:
            self._ran += 1
            return await self.host.run(request)

    def _contaminated(self, tasks: Sequence[TaskRef]) -> Iterable[Fault]:
        if not self.questions.contamination_ngram:
            return
        instructions = {task.name: (task.path / "instruction.md").read_text(encoding="utf-8") for task in tasks}
        found = find_contamination(instructions, self.questions.corpora, self.questions.contamination_ngram)
        for task, (corpus, words) in found.items():
            yield Fault(FaultKind.CONTAMINATED, task, f"shares {words!r} with {corpus}")


def _judge_solution(task: TaskRef, tries: Sequence[Trajectory]) -> Iterable[Fault]:
    yield from _untried(task, tries)
    rewards = [one.reward for one in tries if one.reward is not None]
    if any(reward < 1.0 for reward in rewards):
        kind = FaultKind.SOLUTION_FAILS if max(rewards) < 1.0 else FaultKind.FLAKY
        yield Fault(kind, task.name, f"its own solution was graded {_list(rewards)}")


def _judge_idle(task: TaskRef, tries: Sequence[Trajectory]) -> Iterable[Fault]:
    yield from _untried(task, tries)
    rewards = [one.reward for one in tries if one.reward is not None]
    if any(reward > 0.0 for reward in rewards):
        kind = FaultKind.IDLE_PASSES if min(rewards) > 0.0 else FaultKind.FLAKY
        yield Fault(kind, task.name, f"doing nothing was graded {_list(rewards)}")


def _judge_attempt(task: TaskRef, name: str, tried: Trajectory, allowed: float) -> Iterable[Fault]:
    if tried.reward is not None and tried.reward > allowed:
        yield Fault(FaultKind.TAMPERED, task.name, f"an agent that {name} is graded {tried.reward:g}")
    elif tried.outcome is Outcome.VERIFIER_FAILED:  # it could not grade what it found
        yield Fault(
            FaultKind.TAMPERED,
            task.name,
            f"an agent that {name} keeps its trial from being graded ({tried.detail}); let the verifier write 0",
        )
    else:
        yield from _untried(task, [tried])


def _untried(task: TaskRef, tries: Sequence[Trajectory]) -> Iterable[Fault]:
    failed = {f"{one.outcome}: {one.detail}" for one in tries if one.outcome.is_infrastructure}
    return (Fault(FaultKind.UNTRIED, task.name, reason) for reason in sorted(failed))


def _one_of_each_toolset(tasks: Sequence[TaskRef]) -> Sequence[TaskRef]:
    """The first task of each set of tool servers: tasks of a world mostly share theirs."""
    by_servers: dict[str, TaskRef] = {}
    for task in tasks:
        config = tomllib.loads((task.path / "task.toml").read_text(encoding="utf-8"))
        by_servers.setdefault(json.dumps(config.get("environment", {}).get("mcp_servers", [])), task)
    return list(by_servers.values())


def _list(rewards: Sequence[float]) -> str:
    return ", ".join(f"{reward:g}" for reward in rewards)


def _leaks(task: TaskRef) -> list[str]:
    return list(find_leaks(task.path))


def _copy_with_solution(task: Path, folder: Path, script: str) -> None:
    """A task that differs in its solution alone; files are shared with it where the file system can."""
    shutil.copytree(task, folder, copy_function=_share, ignore=shutil.ignore_patterns("solution"))
    solution = folder / "solution" / "solve.sh"
    solution.parent.mkdir()
    solution.write_text(script)
    solution.chmod(0o755)


def _share(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
