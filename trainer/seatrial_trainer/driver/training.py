"""The training loop: take a batch, log it, step, sync the weights, admit more.

    scheduler ─▶ batch ─▶ manifest ─▶ policy steps ─▶ weight sync ─▶ advance ─▶ checkpoint, validation, guards
        ▲                                                              │
        └──────────────── admission (credit, concurrency) ◀────────────┘

The loop waits for the buffer, then for the policy, then for the engines; trials run meanwhile in the dispatcher's
tasks. Validation runs beside the trials at one weight version: the next sync waits for it. A checkpoint is written
beside the steps after it, once the ranks hold a copy of what it is of; the next checkpoint waits for it, and so does
its validation's result. Shutdown goes inwards out: the loop ends, what is being written is, the dispatcher cancels its
trials, groups in flight stay in the scheduler's state.
"""

import asyncio
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace

import structlog

from seatrial_api.ceilings import algorithmic_ceiling
from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AlgorithmSpec
from seatrial_api.spec.data import Domain
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.guards import GuardFired, check
from seatrial_trainer.driver.measuring import Measurement, measure
from seatrial_trainer.driver.saving import CheckpointSaver
from seatrial_trainer.driver.step_measuring import ErrorRates, StepTimes, TrialWindow, make_record
from seatrial_trainer.driver.stopping import StopRequestedError, unless_stopped
from seatrial_trainer.driver.sync_probe import SyncProbe
from seatrial_trainer.driver.trials import TrialProfile
from seatrial_trainer.evaluation.summary import summarize
from seatrial_trainer.observability.step_record import StepRecord, rewards_by_cohort
from seatrial_trainer.policy.batch import OptimStats, StepStats
from seatrial_trainer.policy.minibatch import build_minibatches
from seatrial_trainer.policy.schedule import learning_rate
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.groups import Batch, FinishedGroup, GroupResult
from seatrial_trainer.scheduling.sampler import Sampler
from seatrial_trainer.scheduling.scheduler import Scheduler, SchedulerSettings, SchedulerState
from seatrial_trainer.storage.manifest import BatchManifest

log = structlog.get_logger(__name__)

_BATCH_PATIENCE = 3.0
"""A batch may take so many wall deadlines of a trial: its retries and its refills have to fit in."""
_REPAIR_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What one training stage does."""

    tasks: list[TaskRef]
    domains: list[Domain]
    """Their shares of what is drawn; every task counts the same if empty."""
    algorithm: AlgorithmSpec
    num_steps: int
    max_staleness: int
    validate_every: int = 0
    """Steps between validations; 0 never validates."""
    validation_tries: int = 1
    keeps_checkpoints: bool = True
    """A stage whose weights are thrown away starts over after a stop."""

    @property
    def algorithmic_ceiling(self) -> int:
        """Trials that can be in flight within the staleness bound."""
        return algorithmic_ceiling(self.max_staleness, self.algorithm.batch_size, self.algorithm.group_size)


class GuardedError(Exception):
    """A guard ended the stage; its checkpoint allows it to go on."""

    def __init__(self, fired: GuardFired) -> None:
        self.fired = fired
        super().__init__(str(fired))


@dataclass
class TrainingLoop:
    """Trains from the model, or goes on from the newest checkpoint."""

    context: StageContext
    plan: TrainingPlan
    clock: Clock = SYSTEM_CLOCK
    probe: SyncProbe | None = None
    """Looks at the first weight syncs, where a stage asks for it."""
    history: list[StepRecord] = field(default_factory=list)
    version: int = 0
    """Weight version of the policy and, between steps, of the engines."""
    _window: TrialWindow = field(default_factory=TrialWindow)
    _groups_left: Counter[GroupResult] = field(default_factory=Counter)
    """What telemetry was told."""
    _validations: dict[int, float] = field(default_factory=dict)
    """Validation pass@1 by version."""
    _saver: CheckpointSaver = field(init=False)
    _silent_guards: dict[str, int] = field(default_factory=dict)
    """Guards that fired before, with the last version at which they are silent."""

    async def run(self) -> list[StepRecord]:
        """Train to the last step.

        Raises:
            StopRequestedError: if the driver was asked to stop; a checkpoint was saved.
            GuardedError: if a guard fired; a checkpoint was saved.
            WaitTimeoutError: if no batch came together in time, naming what it waited for.
        """
        context = self.context
        if not self.plan.keeps_checkpoints:
            await asyncio.to_thread(context.storage.begin_anew)  # of weights that are gone
        rollout = await context.cluster.rollout()
        rollout.trials.prepare(context.stage.name, TrialProfile.training(context.spec), self.plan.tasks)
        sampler = Sampler(self.plan.tasks, self.plan.domains, seed=self.plan.algorithm.seed)
        await self._load()
        async with context.dispatching(self.plan.algorithmic_ceiling) as dispatcher:
            scheduler = self._scheduler(sampler, dispatcher, await asyncio.to_thread(context.storage.next_attempt))
            async with asyncio.TaskGroup() as beside:
                self._saver = CheckpointSaver(context, beside, prunes=not self.plan.validate_every)
                await self._restore(scheduler, dispatcher)
                scheduler.start()
                validation: asyncio.Task[None] | None = None
                while self.version < self.plan.num_steps:
                    record = await self._step(scheduler, dispatcher, validation)
                    await self._after_step(record)
                    if self._validates(record.version):
                        validation = beside.create_task(self._validate(dispatcher, record.version))
        if self.plan.validate_every and self.plan.num_steps not in context.storage.checkpoints.scores():
            raise StopRequestedError  # a stop ended the last validation
        return self.history

    async def _step(
        self, scheduler: Scheduler, dispatcher: TrialDispatcher, validation: asyncio.Task[None] | None
    ) -> StepRecord:
        started = self.clock.now()
        batch = await self._take_batch(scheduler)
        await self._log(batch, scheduler.state())
        groups = [list(group.trajectories) for group in batch.groups]
        self._activity(f"training on {len(groups)} groups")
        await self._compare(groups, batch.step)
        train_started = self.clock.now()
        steps = await self._train(groups, batch.step)
        trained = self.clock.now()
        if validation is not None:
            self._activity("waiting for validation before the weights change")
            await validation
        self._activity("syncing weights")
        async with self.probe.across(dispatcher, batch.step + 1) if self.probe else nullcontext():
            sync = await self.context.cluster.publish(batch.step + 1)
        self.version = batch.step + 1
        scheduler.advance(self.version)
        times = StepTimes(
            buffer_wait=batch.wait_seconds,
            train=trained - train_started,
            sync=sync.seconds,
            paused=sync.paused_seconds,
            step=self.clock.now() - started,
        )
        record = make_record(self.version, batch, self.plan.algorithm, steps, times, self._window.take())
        probed = self.probe.found.get(self.version) if self.probe else None
        if probed is None:
            return record
        return replace(
            record,
            in_flight_tokens=probed.num_tokens,
            in_flight_logprob_abs_diff_mean=probed.logprob_abs_diff_mean,
        )

    async def _log(self, batch: Batch, state: SchedulerState) -> None:
        group_ids = [group.group_id for group in batch.groups]
        manifest = BatchManifest(version=batch.step, group_ids=group_ids, scheduler=state.model_dump(mode="json"))
        await asyncio.to_thread(self.context.storage.write_batch, manifest)
        left_now = Counter(state.groups) - self._groups_left
        self.context.telemetry.groups_left({result.value: groups for result, groups in left_now.items()})
        self._groups_left = Counter(state.groups)

    async def _train(self, groups: list[list[Trajectory]], version: int) -> list[tuple[StepStats, OptimStats]]:
        policy = await self.context.cluster.policy()
        algorithm = self.plan.algorithm
        rate = learning_rate(version, self.plan.num_steps, algorithm.optimizer)
        minibatches = build_minibatches(
            groups,
            algorithm,
            self.context.spec.data.domains,
            max_tokens=self.context.spec.model.context_length.train,
            version=version,
        )
        return [await policy.train_minibatch(minibatch, rate) for minibatch in minibatches]

    async def _compare(self, groups: list[list[Trajectory]], version: int) -> None:
        """Ask the trainer for the logprobs of a few trajectories, for the report's view token by token."""
        wanted = -(-self.context.spec.report.trajectories // (2 * self.plan.num_steps))
        chosen = [group[0] for group in groups if group[0].num_sampled][:wanted]
        sequences = [sequence.token_ids for trajectory in chosen for sequence in trajectory.sequences]
        logprobs = iter(await (await self.context.cluster.policy()).logprobs(sequences) if sequences else [])
        self.context.storage.write_comparison(
            version, {one.trial_id: [next(logprobs) for _ in one.sequences] for one in chosen}
        )

    async def _take_batch(self, scheduler: Scheduler) -> Batch:
        limits = self.context.spec.harness.limits
        deadline = Deadline.after(_BATCH_PATIENCE * limits.wall_timeout_seconds, self.clock)
        self.context.telemetry.activity(lambda: f"waiting for {scheduler.waiting_for()}")
        taken = asyncio.Event()
        batch: Batch | None = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repair_until(taken))
            with suppress(StopRequestedError):
                batch = await unless_stopped(self.context.stop, scheduler.take_batch(deadline))
            taken.set()
        if batch is None:
            await self._save_and_wait()
            raise StopRequestedError
        return batch

    async def _repair_until(self, taken: asyncio.Event) -> None:
        """While the policy's weights stand still, give them to engines that come back without them."""
        while not taken.is_set():
            try:
                async with asyncio.timeout(_REPAIR_SECONDS):
                    await taken.wait()
            except TimeoutError:
                await self.context.cluster.repair()

    async def _after_step(self, record: StepRecord) -> None:
        self.history.append(record)
        self._tell(record)
        cohort = rewards_by_cohort(self.history).get(record.version - 1 - self.plan.max_staleness)
        if cohort is not None:
            self.context.telemetry.cohort_trained(record.version, cohort)
        self.context.telemetry.units(record.version, self.plan.num_steps, "steps")
        silent = frozenset(name for name, until in self._silent_guards.items() if record.version <= until)
        guards = self.context.live.guards
        fired = check(guards, self.history, silent, self._validations) if self.plan.keeps_checkpoints else None
        if fired:
            self._silent_guards[fired.guard] = record.version + guards.rearm_steps
            await self._save_and_wait()
            raise GuardedError(fired)
        if self._is_saved(record.version):
            await self._save()

    def _tell(self, record: StepRecord) -> None:
        self.context.storage.append_step(asdict(record))
        self.context.telemetry.step_ended(record)

    def _is_saved(self, version: int) -> bool:
        is_due = version % self.context.spec.checkpoint.every_steps == 0
        return is_due or self._validates(version) or version == self.plan.num_steps

    def _validates(self, version: int) -> bool:
        every = self.plan.validate_every
        return version > 0 and every > 0 and (version % every == 0 or version == self.plan.num_steps)

    async def _validate(self, dispatcher: TrialDispatcher, version: int) -> None:
        context = self.context
        profile = TrialProfile.evaluation(context.spec, context.spec.harness.sampling)
        tasks, tries = context.inputs.validation, self.plan.validation_tries
        try:
            trajectories = await measure(context, dispatcher, Measurement("validation", profile, tasks, tries, version))
        except StopRequestedError:
            return  # the loop saves and stops by itself; a resumed run goes on with this validation
        result = summarize("validation", context.spec.harness.name, trajectories)
        self._validations[version] = result.pass_at_1.mean
        await self._saver.finish()
        await asyncio.to_thread(context.storage.checkpoints.score, version, result.pass_at_1.mean)
        await asyncio.to_thread(context.storage.checkpoints.prune, context.spec.checkpoint.keep)
        context.telemetry.validated(version, result)
        await self._saver.tell()
        log.info("validated", version=version, pass_at_1=result.pass_at_1.mean)

    async def _validate_if_owed(self, dispatcher: TrialDispatcher) -> None:
        checkpoints = self.context.storage.checkpoints
        scores = checkpoints.scores()
        self._validations |= scores
        owed = [version for version in checkpoints.versions() if self._validates(version) and version not in scores]
        for checkpoint in checkpoints.whole(owed):
            version = checkpoint.manifest.version
            self._activity(f"validating version {version}, which the last attempt did not come to")
            await self.context.cluster.serve(checkpoint.model, version)
            await self._validate(dispatcher, version)

    async def _save(self) -> None:
        if self.plan.keeps_checkpoints:
            await self._saver.save(self.version, {"silent_guards": dict(self._silent_guards)})

    async def _save_and_wait(self) -> None:
        await self._save()
        await self._saver.finish()

    async def _restore(self, scheduler: Scheduler, dispatcher: TrialDispatcher) -> None:
        """Go on where the last attempt stopped: after the checkpoint the logged batches, then stored groups.

        An attempt that was killed may owe what comes after a step: the checkpoint of a version, and its validation.
        """
        storage = self.context.storage
        if not self.plan.keeps_checkpoints:
            await self._serve()
            return
        await self._saver.tell()
        told = {step["version"] for step in storage.read_steps()}
        for manifest in storage.read_batches(self.version):
            self._activity(f"training the logged batch of step {manifest.version} again")
            groups = storage.read_batch_groups(manifest)
            steps = await self._train(groups, manifest.version)
            self.version = manifest.version + 1
            if self.version not in told:
                self._tell(self._replayed(groups, manifest.version, steps))
            if self._is_saved(self.version):
                await self._save()
            if self.context.stop.is_set():
                await self._save_and_wait()
                raise StopRequestedError
        await self._saver.finish()
        self.history = [StepRecord.stored(step) for step in storage.read_steps() if step["version"] <= self.version]
        self._restore_scheduler(scheduler)
        await self._validate_if_owed(dispatcher)
        await self._serve()
        self.context.telemetry.units(self.version, self.plan.num_steps, "steps")

    def _replayed(
        self, groups: list[list[Trajectory]], version: int, steps: list[tuple[StepStats, OptimStats]]
    ) -> StepRecord:
        """The record of a step that its attempt did not live to tell; nothing waited and nothing was synced for it."""
        finished = tuple(FinishedGroup.from_spool(group, self.plan.max_staleness) for group in groups)
        batch = Batch(version, finished, wait_seconds=0.0, hold_seconds=0.0)
        times = StepTimes(
            buffer_wait=0.0, train=sum(stats.seconds for stats, _ in steps), sync=0.0, paused=0.0, step=0.0
        )
        return make_record(self.version, batch, self.plan.algorithm, steps, times, ErrorRates(0.0, ()))

    async def _serve(self) -> None:
        """Make the engines serve the policy's weights; those of version 0 are the model's own."""
        if self.version == 0:
            await self.context.cluster.serve(self.context.inputs.model_path, version=0)
        else:
            await self.context.cluster.publish(self.version)
            self.context.telemetry.weight_version = self.version

    async def _load(self) -> None:
        """Take the newest whole checkpoint, or the model if there is none."""
        policy = await self.context.cluster.policy(fresh=True)
        checkpoints = self.context.storage.checkpoints
        checkpoint = await asyncio.to_thread(checkpoints.latest) if self.plan.keeps_checkpoints else None
        checkpoints.set_aside_after(checkpoint)
        if checkpoint is None:
            return
        self._activity(f"loading the checkpoint of version {checkpoint.manifest.version}")
        await policy.load(checkpoint.policy)
        self.version = checkpoint.manifest.version
        self._silent_guards = dict(checkpoint.manifest.state["silent_guards"])

    def _restore_scheduler(self, scheduler: Scheduler) -> None:
        storage = self.context.storage
        manifests = storage.read_batches(0, self.version)
        trained = {group_id for manifest in manifests for group_id in manifest.group_ids}
        state = SchedulerState.model_validate(manifests[-1].scheduler) if manifests else scheduler.state()
        waiting = [group_id for group_id in storage.group_ids() if group_id not in trained]
        spooled = [
            FinishedGroup.from_spool(group, self.plan.max_staleness)
            for group in storage.read_waiting(waiting)
            if group and group[0].purpose == self.context.stage.name
        ]
        self._groups_left = Counter(state.groups)
        scheduler.restore(state, version=self.version, spooled=spooled)

    def _scheduler(self, sampler: Sampler, dispatcher: TrialDispatcher, incarnation: int) -> Scheduler:
        algorithm = self.plan.algorithm
        min_valid = algorithm.min_valid_trials or (algorithm.group_size + 1) // 2
        settings = SchedulerSettings(
            purpose=self.context.stage.name,
            rules=AssemblyRules(algorithm.group_size, min_valid),
            batch_size=algorithm.batch_size,
            max_staleness=self.plan.max_staleness,
            num_steps=self.plan.num_steps,
            incarnation=incarnation,
        )
        return Scheduler(
            settings,
            sampler,
            dispatcher,
            on_group_finished=self._store,
            on_trial=self._observe,
            clock=self.clock,
        )

    def _observe(self, trajectory: Trajectory) -> None:
        if trajectory.outcome is Outcome.CANCELLED:
            return
        self._window.add(trajectory)
        if trajectory.outcome.is_infrastructure:
            self.context.storage.write_failure(trajectory)

    async def _store(self, group: FinishedGroup) -> None:
        await asyncio.to_thread(self.context.storage.write_group, group.group_id, group.trajectories)

    def _activity(self, text: str) -> None:
        self.context.telemetry.activity(text)
