"""A cluster as a plan sees it, in memory: what KubeRay and a driver do to a run, one small step at a time."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from seatrial_api.driver_request import LiveSettings
from seatrial_api.kubernetes_object import ObjectMeta
from seatrial_api.playbook import ExitCode
from seatrial_api.progress import Progress, StageProgress
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.stage_report import GateResult, StageResult
from seatrial_api.status import RLRunStatus
from seatrial_operator.plan.actions import (
    Action,
    ApplyPool,
    CreateJob,
    DeleteAttempt,
    DeleteRun,
    EnsureSecret,
    Plan,
    PutSettings,
    StopDriver,
    Story,
)
from seatrial_operator.plan.digests import stages_text
from seatrial_operator.plan.observed import JobSeen, Observed, PodSeen, RunObject, Silent, Situation, Timing
from seatrial_operator.plan.run import plan
from seatrial_operator.plan.story import stories
from tests.manifests import run_manifest

START = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER_RUN: dict[str, Any] = {
    "spec__sandbox": {"provider": "local"},
    "spec__storage": {"pvc": {"claim": "runs"}},
    "spec__async__weightSync": {"method": "gloo"},
    "spec__topology": {"nodes": 2, "gpusPerNode": 8},
}
"""Changes that make `run_manifest` a run for the operator."""


@dataclass
class Driver:
    """What a driver would tell; it takes one step each time that the world turns."""

    stages: list[str]
    results: dict[str, StageResult] = field(default_factory=dict)
    """What each stage comes to; `Passed` for those that are not named."""
    done: dict[str, StageResult] = field(default_factory=dict)
    step: int = 0
    ended: ExitCode | None = None
    message: str = ""
    needs_change: bool = False
    """Whether what failed can only be helped by a person."""
    settings: LiveSettings | None = None
    is_stopping: bool = False
    is_silent: bool = False

    def turn(self) -> None:
        """End one stage, or all of it."""
        if self.ended is not None:
            return
        todo = [name for name in self.stages if name not in self.done]
        if self.is_stopping:
            self.ended = ExitCode.INTERRUPTED
        elif not todo:
            self.ended = ExitCode.PASSED
        else:
            result = self.done[todo[0]] = self.results.get(todo[0], StageResult.PASSED)
            self.step += 1
            if result is not StageResult.PASSED:
                self.ended = ExitCode.FAILED if result is StageResult.FAILED else ExitCode.STOPPED

    def tell(self) -> Progress:
        """The page at `/v1/progress`."""
        todo = [name for name in self.stages if name not in self.done]
        rows = [
            StageProgress(
                name=name,
                kind="Any",
                result=result,
                seconds=1.0,
                message=f"{name} ended {result.value}",
                needs_change=self.needs_change and result is StageResult.FAILED,
            )
            for name, result in self.done.items()
        ]
        if todo and self.ended is None:
            rows.append(StageProgress(name=todo[0], kind="Any", seconds=1.0))
        stage = "" if self.ended is not None or not todo else todo[0]
        return Progress(
            run="run", stage=stage, step=self.step, of=9, stages=rows, ended=self.ended, message=self.message
        )


@dataclass
class Job:
    """A RayJob with its pods."""

    stages: str
    segment_stages: list[str]
    state: str = ""
    head: str = ""
    is_suspended: bool = False
    is_deleting: bool = False
    driver: Driver | None = None


@dataclass
class RunWorld:
    """One run, and all that belongs to it."""

    spec: RLRunSpec
    status: RLRunStatus = field(default_factory=RLRunStatus)
    jobs: dict[tuple[int, int], Job] = field(default_factory=dict)
    secrets: set[tuple[int, int]] = field(default_factory=set)
    results: dict[str, StageResult] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    now: datetime = START
    generation: int = 1
    is_deleted: bool = False
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    refused: str = ""
    told: list[Story] = field(default_factory=list)
    made: list[tuple[int, int]] = field(default_factory=list)
    """Every attempt for which a RayJob was made, in order."""
    passed: dict[str, StageResult] = field(default_factory=dict)
    """Reports in run storage."""
    timing: Timing = field(default_factory=Timing)
    _heads: int = 0

    @classmethod
    def of(cls, **changes: Any) -> "RunWorld":
        """A world with the run of `tests.manifests`, changed."""
        return cls(RLRun.model_validate(run_manifest(**(CLUSTER_RUN | changes))).spec)

    def plan(self) -> Plan:
        """What the operator would do now."""
        meta = ObjectMeta(name="run", namespace="team", annotations=self.annotations)
        run = RLRun.model_construct(metadata=meta, spec=self.spec)
        thing = RunObject(run, "uid", self.generation, "1", START, self.status)
        return plan(Situation(thing, self.observe(), self.now, self.timing, self.problems))

    def observe(self) -> Observed:
        """What the operator would see now."""
        current = (self.status.segment, self.status.attempt) if self.status.current else None
        job = self.jobs.get(current) if current else None
        seen = None
        if job is not None and job.driver is not None and current in self.secrets:
            seen = Silent(1e6, "no answer") if job.driver.is_silent else job.driver.tell()
        return Observed(
            jobs=tuple(_job_seen(key, job) for key, job in self.jobs.items()),
            pods=tuple(_head_seen(key, job) for key, job in self.jobs.items() if job.head),
            driver=seen,
            has_secret=current in self.secrets,
            missing=self.missing,
            refused=self.refused,
        )

    def reconcile(self, *, cut_after: int | None = None) -> Plan:
        """One reconciliation; with `cut_after`, the operator dies after so many writes, that of the status included."""
        wanted = self.plan()
        writes: list[Action | RLRunStatus] = [*wanted.actions, wanted.status, *wanted.removals]
        for write in writes[:cut_after]:
            if isinstance(write, RLRunStatus):
                self.told += stories(self.status, write, self.spec)
                self.status = write
            else:
                self.act(write)
        return wanted

    def act(self, action: Action) -> None:
        """Do what the API server or the driver would do."""
        match action:
            case CreateJob(segment=segment, attempt=attempt):
                key = (segment.index, attempt)
                assert key not in self.jobs, f"attempt {key} was made twice"
                assert not self.jobs, f"attempt {key} was made beside {list(self.jobs)}"
                given = [stage for stage in self.spec.stages if stage.name in segment.stages]
                self.jobs[key] = Job(stages_text(given), list(segment.stages))
                self.made.append(key)
            case EnsureSecret(segment=segment, attempt=attempt):
                assert (segment.index, attempt) in self.jobs, "a Secret without a RayJob is found by nobody"
                self.secrets.add((segment.index, attempt))
            case DeleteAttempt(segment=segment, attempt=attempt):
                self.secrets.discard((segment, attempt))
                if (segment, attempt) in self.jobs:
                    self.jobs[segment, attempt].is_deleting = True
            case PutSettings(settings=settings):
                self.driver.settings = settings
            case StopDriver():
                self.driver.is_stopping = True
            case DeleteRun():
                self.is_deleted = True
            case ApplyPool():
                pass
            case _:
                assert_never(action)

    @property
    def driver(self) -> Driver:
        """The one driver that there is."""
        (driver,) = [job.driver for job in self.jobs.values() if job.driver is not None]
        return driver

    @property
    def job(self) -> Job:
        """The one RayJob that there is."""
        (job,) = self.jobs.values()
        return job

    def turn(self, seconds: float = 5.0) -> None:
        """KubeRay and the drivers take one step each, and time passes."""
        self.now += timedelta(seconds=seconds)
        for key, job in list(self.jobs.items()):
            if job.is_deleting:
                del self.jobs[key]
            elif job.is_suspended:
                job.state = "Suspended"
            elif job.state in {"", "Suspended"}:
                job.state = "Initializing"
                self.new_head(job)
            elif job.driver is None and key in self.secrets:
                job.state = "Running"
                job.driver = Driver(job.segment_stages, self.results, dict(self.passed))
            elif job.driver is not None:
                job.driver.turn()
                kept = {StageResult.PASSED, StageResult.GATE_FAILED}
                self.passed |= {name: result for name, result in job.driver.done.items() if result in kept}

    def new_head(self, job: Job) -> None:
        """A head pod comes up."""
        self._heads += 1
        job.head = f"head-{self._heads}"

    def live(self, rounds: int = 60) -> None:
        """Let the run live until nothing changes any more, or for so many rounds."""
        for _ in range(rounds):
            self.turn()
            self.reconcile()

    def reasons(self) -> dict[str, str]:
        """Status and reason of each condition."""
        return {one.type: f"{one.status} {one.reason}" for one in self.status.conditions}

    def edit(self, **changes: Any) -> None:
        """The user edits the spec."""
        self.spec = RLRun.model_validate(run_manifest(**(CLUSTER_RUN | changes))).spec
        self.generation += 1


def gate(value: float) -> GateResult:
    """A gate that holds up to 0.01."""
    return GateResult(name="non-model error rate", value=value, bound=0.01, direction="AtMost")


def _job_seen(key: tuple[int, int], job: Job) -> JobSeen:
    segment, attempt = key
    return JobSeen(
        name=f"run-s{segment}-a{attempt}",
        segment=segment,
        attempt=attempt,
        stages=job.stages,
        cluster=f"run-s{segment}-a{attempt}-c" if job.head else None,
        state=job.state,
        message="",
        is_suspended=job.is_suspended,
        is_deleting=job.is_deleting,
    )


def _head_seen(key: tuple[int, int], job: Job) -> PodSeen:
    segment, attempt = key
    name = f"run-s{segment}-a{attempt}-c"
    return PodSeen(f"{name}-head", job.head, segment, attempt, "head", name, "Running")
