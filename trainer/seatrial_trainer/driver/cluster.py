"""What a segment runs on: Ray, engines, trial hosts and policy ranks, each started when a stage first needs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from ray.exceptions import RayError

from seatrial_api.ceilings import systems_ceiling
from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.demand import assumed_shape
from seatrial_api.errors import SeatrialError
from seatrial_api.rlrun import RLRunSpec
from seatrial_rollout.engine.control import WeightFiles
from seatrial_rollout.engine.pool import EnginePool
from seatrial_rollout.engine.router import Router
from seatrial_rollout.judge.actor import JudgeHost
from seatrial_rollout.trials.fleet import TrialFleet
from seatrial_trainer.driver.forecast import Forecast
from seatrial_trainer.driver.inputs import Inputs
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.processes import Processes
from seatrial_trainer.driver.stopping import unless_stopped
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.driver.trials import TrialService
from seatrial_trainer.policy.group import PolicyGroup
from seatrial_trainer.scheduling.concurrency import Ceilings, EngineLoad
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.governor import ConcurrencyGovernor
from seatrial_trainer.storage.run_storage import RunStorage
from seatrial_trainer.weight_sync.factory import make_weight_sync
from seatrial_trainer.weight_sync.protocol import SyncReport, WeightSync, WeightSyncError
from seatrial_trainer.weight_sync.update import update_all

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 2.0
_ACCOUNT_SECONDS = 10.0
_ANSWER_GRACE_SECONDS = 120.0
"""Past a trial's wall deadline its host answers for it; a host that does not is given up after this."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Everything that runs trials."""

    pool: EnginePool
    router: Router
    fleet: TrialFleet
    trials: TrialService


class Cluster:
    """The segment's processes. Enter it, ask for what is needed, leave it: everything is stopped in reverse order.

    Background tasks belong to the cluster's own group. An engine pool that cannot be kept alive does not tear the
    driver down: its fault is raised in the stage that dispatches trials at that moment.
    """

    def __init__(
        self,
        live: LiveSpec,
        inputs: Inputs,
        storage: RunStorage,
        telemetry: Telemetry,
        processes: Processes,
        stop: asyncio.Event,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            live: The run, and the concurrency that is asked for.
            inputs: Model and tasks.
            storage: Run storage.
            telemetry: Told what is started.
            processes: Makes engines, trial hosts and policy.
            stop: Set when the driver is to end; what is just being started is given up then.
        """
        self._spec = live.run.spec
        self._inputs = inputs
        self._storage = storage
        self._telemetry = telemetry
        self._live = live
        self._processes = processes
        self._stop = stop
        self._tasks = asyncio.TaskGroup()
        self._started = AsyncExitStack()
        """How to stop what was started, or was about to be."""
        self._background: list[asyncio.Task[None]] = []
        self._rollout: Rollout | None = None
        self._policy: PolicyGroup | None = None
        self._policy_is_fresh = False
        self._sync: WeightSync | None = None
        self._serving: tuple[Path, int] | None = None
        self._is_connected = False
        self._fault: ExceptionGroup[SeatrialError] | None = None
        self._is_faulty = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._telemetry.activity("stopping engines, trial hosts and policy")
        for task in self._background:
            task.cancel()
        try:
            await self._started.aclose()
        finally:
            # The group is not told of the body's exception, which goes on by itself: it would wrap it.
            await self._tasks.__aexit__(None, None, None)

    async def rollout(self) -> Rollout:
        """Engines and trial hosts.

        Raises:
            WaitTimeoutError: if pods do not join.
            ExceptionGroup: with an `EngineError` or a `WaitTimeoutError`, if engines or trial hosts do not come up.
            StopRequestedError: if a stop is asked for before they are up.
        """
        if self._rollout is None:
            with self._telemetry.phase("start engines and trial hosts"):
                self._rollout = await unless_stopped(self._stop, self._start_rollout())
        return self._rollout

    async def policy(self, *, fresh: bool = False) -> PolicyGroup:
        """The policy ranks.

        Args:
            fresh: With the initial weights, whatever was trained before.

        Raises:
            InvalidInputError: if the backend or its layout is not available.
            PolicyRankLostError: if a rank dies.
            StopRequestedError: if a stop is asked for before they are up.
        """
        if fresh and not self._policy_is_fresh:
            await self._stop_policy()
        if self._policy is None:
            with self._telemetry.phase("start policy"):
                self._policy = await unless_stopped(self._stop, self._start_policy())
        self._policy_is_fresh = fresh
        return self._policy

    async def adopt(self, spec: RLRunSpec) -> None:
        """Train as another spec says from now on; policy and weight sync are made anew when they are next asked for.

        Args:
            spec: One that shares model, nodes, engines and trial hosts with the run's own.
        """
        if spec != self._spec:
            await self._stop_policy()
            self._spec = spec

    async def serve(self, path: Path, version: int) -> None:
        """Make the engines serve a model folder as a version; one that is being replaced loads it when it is back.

        Raises:
            WeightSyncError: if no engine can load it.
        """
        pool = (await self.rollout()).pool
        if self._serving == (path, version):
            return
        timeout = self._spec.async_.weight_sync.timeout_seconds
        updates = await update_all(
            pool.engines,
            lambda engine: engine.load_files(path, version, clear_kv_cache=True, timeout_seconds=timeout),
        )
        if not updates.reports:
            raise WeightSyncError(version=version, failures=list(updates.failures.values()))
        await pool.publish(version, WeightFiles(version, path))
        self._serving = path, version
        self._telemetry.weight_version = version

    async def publish(self, version: int) -> SyncReport:
        """Bring the policy's weights to the engines as a version.

        Raises:
            WeightSyncError: if no engine takes them in time.
        """
        pool = (await self.rollout()).pool
        policy = await self.policy()
        if self._sync is None:
            self._sync = make_weight_sync(
                self._spec.async_.weight_sync,
                pool,
                export=policy.export,
                ranks=policy.ranks,
                directory=self._storage.exports,
            )
        self._serving = None
        report = await self._sync.publish(version)
        if report.failures:
            log.warning("engines go without a weight version", version=version, failures=report.failures)
        return report

    async def repair(self) -> None:
        """Bring the published weights to engines that came back without them; only between optimiser steps."""
        if self._sync is not None and (count := await self._sync.repair()):
            log.info("engines came back and were given the weights", engines=count)

    @asynccontextmanager
    async def dispatching(self, algorithmic_ceiling: int) -> AsyncIterator[TrialDispatcher]:
        """Run trials while the block runs, as many as the engines bear and the ceilings allow.

        Args:
            algorithmic_ceiling: Trials that can be in flight within the staleness bound.
        """
        rollout = await self.rollout()
        patience = self._spec.harness.limits.wall_timeout_seconds + _ANSWER_GRACE_SECONDS
        async with TrialDispatcher(rollout.trials, limit=1, trial_timeout_seconds=patience) as dispatcher:
            agents = self._spec.topology.agents
            places = agents.replicas * agents.hosts_per_replica * agents.trials_per_host
            load = await self._look()
            expected_tokens = assumed_shape(self._spec).tokens
            governor = ConcurrencyGovernor(
                dispatcher,
                self._look,
                concurrency=lambda: self._live.concurrency,
                ceilings=Ceilings(
                    algorithmic_ceiling, systems_ceiling(load.kv_capacity_tokens, expected_tokens), places
                ),
                interval_seconds=_LOOK_SECONDS,
            )
            dispatcher.spawn(governor.run())
            dispatcher.spawn(self._tell_ceilings(governor, dispatcher))
            dispatcher.spawn(self._raise_fault())
            if self._spec.sandbox.provider == "kubernetes":
                forecast = Forecast(dispatcher.upcoming, rollout.trials.world_of, rollout.fleet.expect)
                dispatcher.spawn(forecast.run())
            yield dispatcher

    async def _stop_policy(self) -> None:
        sync, self._sync = self._sync, None
        policy, self._policy = self._policy, None
        try:
            if sync is not None:
                await sync.close()
        except (SeatrialError, RayError) as error:  # its members go anyway
            log.warning("weight synchronisation was not closed", error=str(error))
        finally:
            if policy is not None:
                policy.stop()

    async def _connect(self) -> None:
        if not self._is_connected:
            self._started.push_async_callback(self._processes.disconnect)
            self._is_connected = True
        await self._processes.connect()

    async def _start_policy(self) -> PolicyGroup:
        await self._connect()
        self._telemetry.activity("starting the policy")
        self._started.push_async_callback(self._stop_policy)
        return await self._processes.start_policy(self._spec)

    async def _start_rollout(self) -> Rollout:
        await self._connect()
        self._telemetry.activity("starting engines and trial hosts")
        pool, fleet, judge = self._processes.engines(), self._processes.trial_hosts(), self._processes.judge()
        parts = [part for part in (pool, judge, fleet) if part is not None]
        for part in parts:
            self._started.push_async_callback(part.stop)
        async with asyncio.TaskGroup() as tasks:
            for part in parts:
                tasks.create_task(part.start())
        self._telemetry.sandbox = fleet.sandbox
        log.info("trial hosts are up", sandbox=fleet.sandbox)
        self._background.append(self._tasks.create_task(self._supervise(pool)))
        if judge is not None:
            self._background.append(self._tasks.create_task(judge.run()))
            self._background.append(self._tasks.create_task(self._count_judge_on(judge)))
            self._started.push_async_callback(self._count_judge, judge)
        self._serving = self._inputs.model_path, 0
        router = Router(pool.addresses())
        trials = TrialService(self._spec, self._inputs, fleet, router, self._telemetry, judge)
        return Rollout(pool, router, fleet, trials)

    async def _supervise(self, pool: EnginePool) -> None:
        try:
            await pool.run()
        except* SeatrialError as group:
            self._fault = group
            self._is_faulty.set()

    async def _count_judge_on(self, judge: JudgeHost) -> None:
        while True:
            await SYSTEM_CLOCK.sleep(_ACCOUNT_SECONDS)
            await self._count_judge(judge)

    async def _count_judge(self, judge: JudgeHost) -> None:
        dollars = await judge.dollars()
        if dollars is not None:
            self._telemetry.spending.judged(dollars)

    async def _raise_fault(self) -> None:
        await self._is_faulty.wait()
        if self._fault:
            raise self._fault

    async def _look(self) -> EngineLoad:
        rollout = await self.rollout()
        metrics = await rollout.pool.metrics()
        rollout.router.update(rollout.pool.addresses())
        self._telemetry.engines_looked_at(metrics)
        self._telemetry.engines = rollout.pool.statuses()
        return EngineLoad(metrics.kv_usage, metrics.preemptions_total, metrics.kv_capacity_tokens)

    async def _tell_ceilings(self, governor: ConcurrencyGovernor, dispatcher: TrialDispatcher) -> None:
        while True:
            ceilings = governor.ceilings
            self._telemetry.ceiling("algorithmic", ceilings.algorithmic)
            if ceilings.systems is not None:
                self._telemetry.ceiling("systems", ceilings.systems)
            if ceilings.places is not None:
                self._telemetry.ceiling("places", ceilings.places)
            self._telemetry.ceiling("live", dispatcher.limit)
            await SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
