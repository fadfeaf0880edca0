"""What a trial costs without a model: CPU by part, memory per process, trials a second.

Real Harbor, sandboxes, tools and verifiers over a task of the quickstart; the engine follows a script of three turns
with two tool calls and answers at once. CPU is that of every process below this one, the engine's and the tests' own
loop included, read from a cgroup where one can be made (root), else that of the trial processes alone.

    python bench/trial_cost.py [--task FOLDER] [--trials N]
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.spawn import HostConfig
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import engine_server, tool_call
from tests.leftovers import processes_using
from tests.trial_tasks import make_request

ROOT = Path(__file__).parents[1]
TASK = ROOT / "examples/quickstart/tasks/validation/0000-finance-total"
CPU_GROUPS = Path("/sys/fs/cgroup/cpuacct")


async def script(_: str, turn: int) -> str:
    """Look around, write something, say so."""
    calls = [tool_call("filesystem_list_files"), tool_call("filesystem_write_text_file", path="x.txt", text="42")]
    return [*calls, "Done."][turn]


@contextmanager
def cpu_group() -> Iterator[Callable[[], float]]:
    """Put this process into a group of its own; yields its CPU seconds so far, those of all children included."""
    group = CPU_GROUPS / f"seatrial-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        yield lambda: float("nan")
        return
    try:
        yield lambda: int((group / "cpuacct.usage").read_text()) / 1e9
    finally:
        (CPU_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            group.rmdir()


async def run_many(run: Callable[[int], Awaitable[Trajectory]], trials: int, in_flight: int) -> list[Trajectory]:
    """Run trials, at most `in_flight` at once."""
    slots = asyncio.Semaphore(in_flight)
    results = []

    async def one(number: int) -> None:
        async with slots:
            results.append(await run(number))

    async with asyncio.TaskGroup() as group:
        for number in range(trials):
            group.create_task(one(number))
    bad = [trajectory for trajectory in results if trajectory.outcome is not Outcome.COMPLETED]
    if bad:
        raise SystemExit(f"{len(bad)} of {trials} trials failed: {bad[0].outcome}: {bad[0].detail}")
    return results


def proportional_mib(pids: list[int]) -> float:
    """Memory of processes in MiB, shared pages divided among those that share them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def children_of(pid: int) -> list[int]:
    """Direct children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


async def measure(host: TrialHost, model: Path, task: Path, trials: int, cpu: Callable[[], float]) -> None:
    """Print one line per kind of trial and number in flight."""
    async with engine_server(model, script) as engine:

        async def run(mode: TrialMode, number: int) -> Trajectory:
            trial_id = f"{mode}-{number}-{time.monotonic_ns()}"
            known = {"trial_id": trial_id, "mode": mode, "model_path": model, "engines": [engine.address]}
            return await host.run(make_request(task, **known))

        print("                            trials     CPU ms a trial      median ms")
        print("trial            in flight  a second   all  trial process  sandbox  agent  verify  whole")
        for mode in (TrialMode.NO_OP, TrialMode.ORACLE, TrialMode.AGENT):
            await run_many(partial(run, mode), 4, 2)
            for in_flight in (1, 8, 64):
                own, everything, started = await host.cpu_seconds(), cpu(), time.monotonic()
                results = await run_many(partial(run, mode), max(trials, in_flight), in_flight)
                seconds, count = time.monotonic() - started, len(results)
                own, everything = await host.cpu_seconds() - own, cpu() - everything
                waits = [
                    [result.phase_seconds[phase] for result in results] for phase in ("sandbox", "agent", "verify")
                ]
                waits.append([result.wall_seconds for result in results])
                sandbox, agent, verify, whole = (statistics.median(wait) * 1000 for wait in waits)
                print(
                    f"{mode:16} {in_flight:9} {count / seconds:9.1f} {everything / count * 1000:5.0f}"
                    f"  {own / count * 1000:13.0f}  {sandbox:7.0f}  {agent:5.0f}  {verify:6.0f}  {whole:5.0f}"
                )


async def measure_memory(host: TrialHost, model: Path, task: Path) -> None:
    """Print what trials take that wait for their engine."""
    release, count = asyncio.Event(), 32

    async def wait(_: str, turn: int) -> str:
        if turn == 1:
            await release.wait()
        return await script(_, turn)

    async with engine_server(model, wait) as engine, asyncio.TaskGroup() as group:
        for number in range(count):
            request = make_request(task, trial_id=str(number), model_path=model, engines=[engine.address])
            group.create_task(host.run(request))
        while sum(engine.turns.values()) < 2 * count:
            await SYSTEM_CLOCK.sleep(0.05)
        zygote, *_ = (pid for pid in processes_using(host.root) if len(children_of(pid)) == count)
        trials = children_of(zygote)
        sandboxes = [pid for pid in processes_using(host.root) if pid not in {zygote, *trials}]
        print(
            f"memory (PSS) with {count} trials in flight: {proportional_mib(trials) / count:.1f} MiB a trial process, "
            f"{proportional_mib(sandboxes) / count:.1f} MiB a sandbox ({len(sandboxes) / count:.0f} processes)"
        )
        release.set()


async def main() -> None:
    """Measure."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--task", type=Path, default=TASK)
    arguments.add_argument("--trials", type=int, default=64)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, cpu_group() as cpu:
        model = write_model(FAMILIES["hermes"], Path(folder, "model"))
        host = TrialHost(HostConfig(model_path=model))
        try:
            started = time.monotonic()
            await host.start()
            print(f"zygote loaded in {time.monotonic() - started:.2f} s")
            await measure(host, model, options.task, options.trials, cpu)
            await measure_memory(host, model, options.task)
        finally:
            await host.stop()


if __name__ == "__main__":
    asyncio.run(main())
