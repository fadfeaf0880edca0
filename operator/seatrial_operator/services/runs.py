"""RLRuns: observe, plan, apply, one status write, events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.conditions import Condition, RunCondition, RunPhase
from seatrial_api.pods import RUN_LABEL, Role
from seatrial_api.status import RLRunStatus
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import RefusedError, StaleError
from seatrial_operator.kube.resources import PODS, RAY_JOBS, RLRUNS, Object, ObjectKey, Watch
from seatrial_operator.kube.times import utc_now
from seatrial_operator.metrics.reconciling import RUNS
from seatrial_operator.plan.actions import Plan
from seatrial_operator.plan.observed import Observed, RunObject, Silent, Situation, Timing
from seatrial_operator.plan.pools import RunView
from seatrial_operator.plan.run import plan
from seatrial_operator.plan.story import stories
from seatrial_operator.services.applying import RunApplier
from seatrial_operator.services.drivers import DriverClient, DriverSilentError
from seatrial_operator.services.events import Events
from seatrial_operator.services.observing import RunObserver
from seatrial_operator.services.reading import UnreadableRunError
from seatrial_operator.services.run_store import RunStore
from seatrial_operator.services.validation import Validation

log = structlog.get_logger(__name__)


@dataclass
class _Memory:
    """What this process keeps of a run beside the store; losing it costs a few requests."""

    uid: str
    written_at: float | None = None
    """When the status was written last."""
    phase: RunPhase | None = None
    needs_live_look: bool = True
    """Whether to ask the API server instead of the store: at first, and after a write that came too late."""


@dataclass
class RunService:
    """Reconciles RLRuns.

    watch, resync, timer ──▶ reconcile ──▶ observe (store, driver) ──▶ plan
                                                                        │ makes or removes something?
                             events ◀── status ◀── apply ◀── plan again from a live look
    """

    client: KubeClient
    drivers: DriverClient
    config: OperatorConfig
    clock: Clock = SYSTEM_CLOCK
    utc_now: Callable[[], datetime] = utc_now
    _memories: dict[ObjectKey, _Memory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config
        self._store = RunStore()
        self._observer = RunObserver(self.client, self.drivers, self._store, config, self.clock)
        self._applier = RunApplier(self.client, self.drivers, self._store, self._observer, config)
        self._validation = Validation(config)
        self._events = Events(self.client, RLRUNS)
        self._timing = Timing(
            poll_seconds=config.poll_seconds,
            resync_seconds=config.resync_seconds,
            silence_seconds=config.silence_seconds,
            stop_grace_seconds=config.stop_grace_seconds,
            first_backoff_seconds=config.backoff_seconds,
            max_backoff_seconds=config.max_backoff_seconds,
        )

    @property
    def kind(self) -> str:
        """The kind of its keys."""
        return RLRUNS.kind

    @property
    def watches(self) -> Sequence[Watch]:
        """What it wants to hear of."""
        return (
            Watch(RLRUNS, "", self._store.notice_run),
            Watch(RAY_JOBS, RUN_LABEL, self._store.notice_job),
            Watch(PODS, RUN_LABEL, self._store.notice_pod),
        )

    async def keys(self) -> list[ObjectKey]:
        """Every run that there is now."""
        items = self.client.each_in(RLRUNS, self.config.namespaces)
        return [key async for item in items for key in self._store.notice_run(item, is_gone=False)]

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Look at one run and do what is to be done now.

        Returns:
            Seconds until the next look; none if the run is gone.
        """
        memory = self._memories.get(key)
        run = None if memory is None or memory.needs_live_look else self._store.run(key)
        try:
            run = run or await self._observer.find_run(key)
        except UnreadableRunError as exc:
            return await self._refuse(key, exc)
        if run is None or run.is_deleting:
            self._forget(key)
            return None if run is None else self.config.resync_seconds
        if memory is not None and memory.uid != run.uid:
            self._forget(key)
            return 0.0
        if memory is None:
            memory = self._memories[key] = _Memory(run.uid)
        try:
            return await self._carry_out(key, run, memory)
        except StaleError:
            memory.needs_live_look = True
            raise

    def view(self, key: ObjectKey) -> RunView | None:
        """What a run's pool is told from; none while the run holds no nodes. Costs no request."""
        run = self._store.run(key)
        if run is None or run.status.current is None:
            return None
        attempt = (run.status.segment, run.status.attempt, Role.ROLLOUT.value)
        pods = self._store.pods(key)
        ours = tuple(pod for pod in pods if (pod.segment, pod.attempt, pod.role) == attempt)
        return RunView(ours, self._observer.told(key))

    async def _carry_out(self, key: ObjectKey, run: RunObject, memory: _Memory) -> float:
        seen = await self._observer.observe(key, run, live=memory.needs_live_look)
        memory.needs_live_look = False
        wanted = self._plan(key, run, seen)
        if wanted.needs_live_look and not seen.is_live:
            fresh = await self._observer.find_run(key)
            if fresh is None:
                return 0.0
            run = fresh
            seen = await self._observer.observe(key, run, live=True)
            wanted = self._plan(key, run, seen)
        wanted = await self._apply(key, run, seen, wanted)
        wait = await self._write(key, run, wanted.status, memory)
        await self._applier.apply(key, run, wanted.removals)
        if wait is None:
            for story in stories(run.status, wanted.status, run.spec):
                await self._events.tell(key, run.uid, story)
        self._count(memory, wanted.status.phase)
        return min(wait or self.config.resync_seconds, wanted.next_look_seconds)

    def _plan(self, key: ObjectKey, run: RunObject, seen: Observed) -> Plan:
        problems = self._validation.problems(run)
        links = self._observer.endpoints(key, run, seen)
        return plan(Situation(run, seen, self.utc_now(), self._timing, problems, links))

    async def _apply(self, key: ObjectKey, run: RunObject, seen: Observed, wanted: Plan) -> Plan:
        """Carry out the actions; returns the plan whose status holds after that."""
        try:
            await self._applier.apply(key, run, wanted.actions)
        except RefusedError as exc:
            log.warning("the cluster refuses what the run needs", error=str(exc))
            return self._plan(key, run, replace(seen, refused=str(exc)))
        except DriverSilentError as exc:
            log.warning("the driver did not take what it was sent", error=str(exc))
            return self._plan(key, run, replace(seen, driver=Silent(0.0, str(exc))))
        return wanted

    async def _write(self, key: ObjectKey, run: RunObject, status: RLRunStatus, memory: _Memory) -> float | None:
        """Write the status if it is time to; returns the time until it is, and none if it was written."""
        if status == run.status:
            return self.config.resync_seconds
        now = self.clock.now()
        if _lasting(status) == _lasting(run.status) and memory.written_at is not None:
            wait = memory.written_at + self.config.status_seconds - now
            if wait > 0:
                return wait
        manifest = {
            "metadata": {"name": key.name, "resourceVersion": run.resource_version},
            "status": _stored(status),
        }
        self._store.keep_run(key, await self.client.apply_status(RLRUNS, key.namespace, manifest))
        memory.written_at = now
        return None

    async def _refuse(self, key: ObjectKey, exc: UnreadableRunError) -> float:
        """Tell, once a generation, that this operator cannot read a run."""
        generation = exc.item["metadata"]["generation"]
        if (exc.item.get("status") or {}).get("observedGeneration") != generation:
            log.warning("cannot read a run; are the operator and its CRDs of one version?", error=str(exc))
            condition = Condition(
                type=RunCondition.ACCEPTED.value,
                status="False",
                reason="InvalidSpec",
                message=f"this operator does not know: {exc.fields}",
                last_transition_time=self.utc_now(),
                observed_generation=generation,
            )
            status = RLRunStatus(observed_generation=generation, conditions=[condition], phase=RunPhase.PENDING)
            manifest = {"metadata": {"name": key.name}, "status": _stored(status)}
            await self.client.apply_status(RLRUNS, key.namespace, manifest)
        return self.config.resync_seconds

    def _count(self, memory: _Memory, phase: RunPhase | None) -> None:
        if memory.phase is phase:
            return
        if memory.phase is not None:
            RUNS.labels(phase=memory.phase.value).dec()
        if phase is not None:
            RUNS.labels(phase=phase.value).inc()
        memory.phase = phase

    def _forget(self, key: ObjectKey) -> None:
        memory = self._memories.pop(key, None)
        if memory is not None:
            self._count(memory, None)
            self._validation.forget(memory.uid)
        self._observer.forget(key)
        self._store.forget(key)


def _lasting(status: RLRunStatus) -> RLRunStatus:
    """The part of a status whose change is written at once; figures, and the wording of conditions, can wait."""
    conditions = [one.model_copy(update={"message": ""}) for one in status.conditions]
    return status.model_copy(update={"progress": None, "metrics": None, "conditions": conditions})


def _stored(status: RLRunStatus) -> Object:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
