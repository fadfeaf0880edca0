"""The real scheduler, dispatcher, assembler, buffer and governor, driven through a run without a model.

Only what lies outside of them is simulated: engines, trials, storage and the training step. Time is virtual, every
draw is seeded, so a run of days takes seconds and is the same each time.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from seatrial_api.base import Auto
from seatrial_api.clock import Deadline
from seatrial_api.spec.data import Domain
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.concurrency import Ceilings
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.governor import ConcurrencyGovernor
from seatrial_trainer.scheduling.groups import Batch, FinishedGroup
from seatrial_trainer.scheduling.sampler import SampledTask, Sampler
from seatrial_trainer.scheduling.scheduler import Scheduler, SchedulerSettings, SchedulerState
from seatrial_trainer.scheduling.simulated_engines import EngineModel, SimulatedEngines
from seatrial_trainer.scheduling.simulated_trials import Faults, Learning, SimulatedTrials
from seatrial_trainer.scheduling.snapshot import SchedulerSnapshot
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time
from seatrial_trainer.scheduling.workload import Workload


@dataclass(frozen=True, slots=True)
class SimulationSpec:
    """One run to simulate; times in seconds."""

    settings: SchedulerSettings
    num_tasks: int = 200
    domains: tuple[str, ...] = ()
    """Domains with equal shares, among which tasks are dealt in turn; one that does not count if empty."""
    concurrency: Auto | int = 550
    engines: EngineModel = field(default_factory=EngineModel)
    workload: Workload = field(default_factory=Workload)
    faults: Faults = field(default_factory=Faults)
    learning: Learning = field(default_factory=Learning)
    train_seconds: float = 100.0
    """Policy step and weight sync; engines go on generating meanwhile."""
    spool_seconds: float = 0.5
    """Until a finished group is durable."""
    manifest_seconds: float = 0.1
    """Until a batch manifest is durable."""
    wait_seconds: float = 50_000.0
    """Deadline of the wait for one batch."""
    trial_timeout_seconds: float = 10_000.0
    expected_tokens: int = 16
    """Simulated tokens of a trajectory, before any was seen."""


@dataclass(slots=True)
class SimulatedStorage:
    """What survives a crash."""

    spool: dict[str, FinishedGroup] = field(default_factory=dict)
    """Finished groups by id."""
    manifests: list[tuple[frozenset[str], SchedulerState]] = field(default_factory=list)
    """Groups of each batch, and the scheduler's state when it was taken."""

    def untrained(self) -> list[FinishedGroup]:
        """Stored groups that no manifest names."""
        trained = {group_id for ids, _ in self.manifests for group_id in ids}
        return [group for group_id, group in self.spool.items() if group_id not in trained]


@dataclass(slots=True)
class SimulationResult:
    """What happened."""

    batches: list[Batch] = field(default_factory=list)
    """Batches that were trained."""
    started: dict[str, str] = field(default_factory=dict)
    """Task by id of each group that was started."""
    trials_started: Counter[str] = field(default_factory=Counter)
    """Starts by trial id."""
    trials_ended: Counter[str] = field(default_factory=Counter)
    """Ends by trial id, cancelled trials included."""
    trial_spans: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each trial."""
    train_spans: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each step."""
    limits: list[int] = field(default_factory=list)
    """Concurrency at each step."""
    kv_usage: list[float] = field(default_factory=list)
    """KV usage at each step."""
    seconds: float = 0.0
    """Virtual time of the whole run."""
    seat_seconds: float = 0.0
    """Time that engine seats were taken, over all seats."""
    num_preemptions: int = 0
    """Requests that engines with a full cache threw out."""
    has_crashed: bool = False
    snapshot: SchedulerSnapshot | None = None
    """The scheduler's numbers at the end."""


def simulate(
    spec: SimulationSpec, storage: SimulatedStorage | None = None, *, crash_after: float | None = None
) -> SimulationResult:
    """Simulate a run from its start, or from what an earlier one left in storage.

    Args:
        spec: The run; `settings.incarnation` has to differ between attempts over one storage.
        storage: What survives; empty at first.
        crash_after: Kill the driver at this time; never if none.

    Raises:
        DeadlockError: if the run can't go on.
        WaitTimeoutError: if a batch does not come within `wait_seconds`.
        RolloutsFailingError: if infrastructure loses one group after the other.
    """
    return run_in_virtual_time(_Simulation(spec, storage or SimulatedStorage()).run(crash_after))


class _Simulation:
    def __init__(self, spec: SimulationSpec, storage: SimulatedStorage) -> None:
        self._spec = spec
        self._storage = storage
        self._clock = LoopClock()
        self._engines = SimulatedEngines(spec.engines)
        self._trials = SimulatedTrials(spec.workload, spec.engines, spec.faults, self._engines, spec.learning)
        self._result = SimulationResult(
            started=self._trials.groups, trials_started=self._trials.starts, trial_spans=self._trials.spans
        )

    async def run(self, crash_after: float | None) -> SimulationResult:
        """The whole run."""
        try:
            async with asyncio.timeout(crash_after):
                await self._run()
        except TimeoutError:
            self._result.has_crashed = True
        self._result.seconds = self._clock.now()
        self._result.seat_seconds = self._engines.seat_seconds
        self._result.num_preemptions = (await self._engines.load()).num_preemptions
        return self._result

    async def _run(self) -> None:
        spec = self._spec
        async with TrialDispatcher(
            self._trials, limit=1, trial_timeout_seconds=spec.trial_timeout_seconds, clock=self._clock
        ) as dispatcher:
            scheduler = self._new_scheduler(dispatcher)
            governor = self._new_governor(dispatcher, scheduler)
            dispatcher.spawn(governor.run())
            scheduler.start()
            for step in range(scheduler.version, spec.settings.num_steps):
                await self._train_one(scheduler, step)
                self._result.limits.append(dispatcher.limit)
                self._result.kv_usage.append((await self._engines.load()).kv_usage)
            self._result.snapshot = scheduler.snapshot(governor.ceilings)

    async def _train_one(self, scheduler: Scheduler, step: int) -> None:
        batch = await scheduler.take_batch(Deadline.after(self._spec.wait_seconds, self._clock))
        state = scheduler.state()
        await self._clock.sleep(self._spec.manifest_seconds)
        self._storage.manifests.append((frozenset(group.group_id for group in batch.groups), state))
        self._result.batches.append(batch)
        start = self._clock.now()
        await self._clock.sleep(self._spec.train_seconds)
        self._result.train_spans.append((start, self._clock.now()))
        scheduler.advance(step + 1)

    def _new_scheduler(self, dispatcher: TrialDispatcher) -> Scheduler:
        names = self._spec.domains or ("any",)
        tasks = [SampledTask(f"task-{n:04d}", names[n % len(names)]) for n in range(self._spec.num_tasks)]
        domains = [Domain(name=name) for name in self._spec.domains]
        scheduler = Scheduler(
            self._spec.settings,
            Sampler(tasks, domains, seed=self._spec.workload.seed),
            dispatcher,
            on_group_finished=self._spool,
            on_trial=self._note_end,
            clock=self._clock,
        )
        manifests = self._storage.manifests
        state = manifests[-1][1] if manifests else scheduler.state()
        scheduler.restore(state, version=len(manifests), spooled=self._storage.untrained())
        return scheduler

    def _new_governor(self, dispatcher: TrialDispatcher, scheduler: Scheduler) -> ConcurrencyGovernor:
        systems = self._spec.engines.kv_capacity // self._spec.expected_tokens
        return ConcurrencyGovernor(
            dispatcher,
            self._engines.load,
            concurrency=lambda: self._spec.concurrency,
            ceilings=Ceilings(scheduler.algorithmic_ceiling, systems),
            interval_seconds=10.0,
            clock=self._clock,
        )

    async def _spool(self, group: FinishedGroup) -> None:
        await self._clock.sleep(self._spec.spool_seconds)
        self._storage.spool[group.group_id] = group

    def _note_end(self, trajectory: Trajectory) -> None:
        self._result.trials_ended[trajectory.trial_id] += 1
