"""CPU that asynchronous control costs per trial, from a hundred to ten thousand trials in flight.

The real sampler, scheduler, dispatcher, assembler and buffer run in virtual time over trials that only sleep. Beside
them, under the same event loop: the least that any control can do (one task a trial that sleeps and puts its result
into a queue), and, with --skyrl, SkyRL's staleness manager under its worker loop.

    python bench/simulated_driver.py [--skyrl FOLDER]

FOLDER holds the package: `pip install --no-deps --target FOLDER skyrl==0.4.0`. The manager's own source is run, nothing
else of the package is imported.
"""

import argparse
import ast
import asyncio
import gc
import random
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

from seatrial_api.clock import Deadline
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.groups import FinishedGroup
from seatrial_trainer.scheduling.sampler import SampledTask, Sampler
from seatrial_trainer.scheduling.scheduler import Scheduler, SchedulerSettings
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time

CLOCK = LoopClock()
TRAIN_SECONDS = 10.0
MIN_TRIALS = 20_000
REPEATS = 3


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    num_in_flight: int
    group_size: int
    max_staleness: int

    @property
    def batch_size(self) -> int:
        """Groups a step, so that the staleness bound allows just the trials in flight."""
        return self.num_in_flight // self.group_size // (self.max_staleness + 1)

    @property
    def num_steps(self) -> int:
        """Steps enough for a figure that repeats."""
        trials_a_step = self.batch_size * self.group_size
        return max(2 * (self.max_staleness + 1), MIN_TRIALS // trials_a_step)

    @property
    def num_trials(self) -> int:
        """Trials of the whole run."""
        return self.num_steps * self.batch_size * self.group_size


def durations(seed: int) -> Iterator[float]:
    """Heavy-tailed trial lengths in seconds, drawn before the clock runs."""
    rng = random.Random(seed)  # noqa: S311  reproducible
    return cycle([rng.lognormvariate(5.0, 1.0) for _ in range(5_000)])


class SleepingTrials:
    """A runner whose trials only sleep."""

    def __init__(self) -> None:
        self._seconds = durations(0)

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """Run one trial."""
        await CLOCK.sleep(next(self._seconds))
        return ticket.trajectory(Outcome.COMPLETED, harness="none", reward=1.0)


async def ours(setting: Setting) -> None:
    """The real control."""

    async def keep(_: FinishedGroup) -> None:
        pass

    async with TrialDispatcher(
        SleepingTrials(), limit=setting.num_in_flight, trial_timeout_seconds=1e6, clock=CLOCK
    ) as dispatcher:
        scheduler = Scheduler(
            SchedulerSettings(
                "train",
                AssemblyRules(setting.group_size, setting.group_size),
                setting.batch_size,
                setting.max_staleness,
                setting.num_steps,
            ),
            Sampler([SampledTask(f"task-{number}", "any") for number in range(1_000)]),
            dispatcher,
            on_group_finished=keep,
            clock=CLOCK,
        )
        scheduler.start()
        for step in range(setting.num_steps):
            await scheduler.take_batch(Deadline.after(1e6, CLOCK))
            await CLOCK.sleep(TRAIN_SECONDS)
            scheduler.advance(step + 1)


async def bare(setting: Setting) -> None:
    """The least: a task a trial, a semaphore, a queue."""
    trials = SleepingTrials()
    ended: asyncio.Queue[Trajectory] = asyncio.Queue()
    places = asyncio.Semaphore(setting.num_in_flight)

    async def run(ticket: TrialTicket) -> None:
        ended.put_nowait(await trials.run(ticket))
        places.release()

    async def start(group: asyncio.TaskGroup) -> None:
        for number in range(setting.num_trials):
            await places.acquire()
            group.create_task(run(TrialTicket("group", number, "task", "any", "train", 0)))

    async with asyncio.TaskGroup() as group:
        group.create_task(start(group))
        for _ in range(setting.num_trials):
            await ended.get()


async def skyrl(setting: Setting, manager_class: Any) -> None:
    """SkyRL's manager under its worker loop: one worker a group in flight, woken by notify_all."""
    manager = manager_class(setting.num_in_flight, setting.batch_size, setting.max_staleness)
    trials = SleepingTrials()
    ended: asyncio.Queue[Trajectory] = asyncio.Queue()
    numbers = count()

    async def work() -> None:
        while (number := next(numbers)) < setting.num_trials:
            await manager.acquire_submission_slot()
            ended.put_nowait(await trials.run(TrialTicket("group", number, "task", "any", "train", 0)))
            await manager.on_rollout_accepted()

    async with asyncio.TaskGroup() as group:
        for _ in range(setting.num_in_flight):
            group.create_task(work())
        for step in range(setting.num_steps):
            for _ in range(setting.batch_size):
                await ended.get()
            await CLOCK.sleep(TRAIN_SECONDS)
            await manager.notify_capacity_change(step + 2)


def load_manager(folder: Path) -> Any:
    """SkyRL's staleness manager from its source, without the package's dependencies."""
    source = (folder / "skyrl/train/fully_async_trainer.py").read_text()
    wanted = {"_RolloutStat", "_AsyncStalenessManager"}
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in wanted]
    names: dict[str, Any] = {"asyncio": asyncio, "dataclass": dataclass}
    exec(compile(tree, "fully_async_trainer.py", "exec"), names)  # noqa: S102  the class under comparison
    return names["_AsyncStalenessManager"]


def microseconds_per_trial(main: Coroutine[Any, Any, None], setting: Setting, *, collect: bool = False) -> float:
    """CPU time of a run, divided by its trials; with Python's cyclic garbage collector off unless `collect`."""
    gc.collect()
    if not collect:
        gc.disable()
    start = time.process_time()
    run_in_virtual_time(main)
    seconds = time.process_time() - start
    gc.enable()
    return seconds / setting.num_trials * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skyrl", type=Path, help="folder that holds the skyrl package")
    arguments = parser.parse_args()
    manager = load_manager(arguments.skyrl) if arguments.skyrl else None
    print("CPU microseconds per trial; control = ours - bare loop, the same for SkyRL's manager.")
    print(f"Best of {REPEATS} runs, for SkyRL's manager one run.")
    print("The collector's share is what Python's cyclic garbage collector adds at its default thresholds.\n")
    print("| in flight | group | batch | S | bare loop | control | collector | SkyRL's manager |")
    print("|---|---|---|---|---|---|---|---|")
    for group_size, max_staleness in ((1, 1), (10, 1), (10, 4)):
        for num_in_flight in (100, 1_000, 10_000):
            setting = Setting(num_in_flight, group_size, max_staleness)
            least = min(microseconds_per_trial(bare(setting), setting) for _ in range(REPEATS))
            cost = min(microseconds_per_trial(ours(setting), setting) for _ in range(REPEATS))
            collected = min(microseconds_per_trial(ours(setting), setting, collect=True) for _ in range(REPEATS))
            theirs = ""
            if manager and group_size == 1:  # its unit is the group
                theirs = f"{microseconds_per_trial(skyrl(setting, manager), setting) - least:.0f}"
            print(
                f"| {num_in_flight:,} | {group_size} | {setting.batch_size:,} | {max_staleness} "
                f"| {least:.0f} | {cost - least:.0f} | {collected - cost:.0f} | {theirs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
