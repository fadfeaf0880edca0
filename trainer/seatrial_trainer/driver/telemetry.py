"""What the driver knows about itself: one object that stages write to and everything visible is read from."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.outcome import Outcome
from seatrial_api.playbook import ExitCode
from seatrial_api.progress import Progress, StageProgress
from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.spec.stages import StageSpec
from seatrial_api.stage_report import EvaluationResult, GateResult, StageReport
from seatrial_api.status import CheckpointStatus
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_trainer.driver.spending import Spending
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.observability.step_record import StepRecord
from seatrial_trainer.observability.token_use import TokenCounts
from seatrial_trainer.observability.trackers import Tracker


@dataclass
class Telemetry:
    """The state behind `/v1/progress`, `/metrics` and the trackers."""

    run: str
    stages: Sequence[StageSpec]
    metrics: RunMetrics
    trackers: Sequence[Tracker] = ()
    clock: Clock = SYSTEM_CLOCK
    spending: Spending = field(default_factory=Spending)
    """What the run has used up so far."""
    error_window: int = 256
    """Newest trials of a stage that its error rate is told of."""
    in_flight: int = 0
    weight_version: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Tokens of the running stage's trials."""
    headlines: dict[str, float] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)
    engines: list[EngineStatus] = field(default_factory=list)
    """Every engine, as of the last look."""
    sandbox: str = ""
    """Where trials run, and what keeps them apart."""
    checkpoints: CheckpointStatus | None = None
    """What the newest Train stage keeps so far."""
    phase_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the running stage by phase."""
    _engines: tuple[PoolMetrics, float] | None = None
    _reports: dict[str, StageReport] = field(default_factory=dict)
    _stage: StageSpec | None = None
    _gates: list[GateResult] = field(default_factory=list)
    _activity: str | Callable[[], str] = ""
    _unit: str = ""
    _done: int = 0
    _total: int = 0
    _ended: ExitCode | None = None
    _message: str = ""

    def __post_init__(self) -> None:
        self._started_at = self._stage_started_at = self._units_started_at = self.clock.now()
        self._failures: deque[bool] = deque(maxlen=self.error_window)
        self.metrics.costs(lambda: self.spending.dollars)

    def stage_started(self, stage: StageSpec) -> None:
        """A stage begins; counts start anew."""
        self._stage = stage
        self._stage_started_at = self.clock.now()
        self._gates = []
        self.outcomes.clear()
        self.tokens.clear()
        self._failures.clear()
        self.phase_seconds.clear()
        self.metrics.stage_started(stage.name, stage.kind)
        self.units(0, 0, "")

    def stage_ended(self, report: StageReport) -> None:
        """A stage ended, now or in an earlier attempt."""
        self._reports[report.stage] = report
        self._stage = None
        self._activity = report.message

    def ended(self, code: ExitCode, message: str = "") -> None:
        """The driver is done, and nothing that it started runs any more."""
        self._stage = None
        self._ended, self._message = code, message
        self.activity("")

    def activity(self, text: str | Callable[[], str]) -> None:
        """What the driver does or waits for now; a function is asked whenever somebody looks."""
        self._activity = text

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block towards a phase of the stage, to tell what the time went into."""
        started = self.clock.now()
        try:
            yield
        finally:
            self.phase_seconds[name] += self.clock.now() - started

    def validated(self, version: int, result: EvaluationResult) -> None:
        """A validation ended."""
        self.metrics.validated({k: estimate.mean for k, estimate in result.pass_at_k.items()})
        self.headlines["validation_pass_at_1"] = result.pass_at_1.mean
        self.track(
            version,
            {"validation/pass_at_1": result.pass_at_1.mean, "validation/reward": result.mean_reward.mean},
        )

    def engines_looked_at(self, engines: PoolMetrics) -> None:
        """The engines told their counters."""
        self.spending.add(self.metrics.engines_looked_at(engines))
        now = self.clock.now()
        if self._engines is not None:
            before, then = self._engines
            tokens = engines.generated_tokens_total - before.generated_tokens_total
            self.headlines["engine_tokens_per_second"] = max(0, tokens) / max(now - then, 1e-6)
        self.headlines["kv_cache_usage"] = engines.kv_usage
        self._engines = engines, now

    def units(self, done: int, total: int, unit: str) -> None:
        """How far the stage has come; a new unit starts the estimate of the remaining time anew."""
        if unit != self._unit or done < self._done:
            self._units_started_at = self.clock.now()
        self._done, self._total, self._unit = done, total, unit

    def gate(self, gate: GateResult) -> GateResult:
        """A gate was measured."""
        self._gates.append(gate)
        return gate

    def trial_started(self) -> None:
        """A trial was handed to a host."""
        self.in_flight += 1
        self.metrics.in_flight(self.in_flight)

    def trial_ended(self, trajectory: Trajectory) -> None:
        """A trial left its host, however it ended."""
        self.in_flight -= 1
        self.metrics.in_flight(self.in_flight)
        self.outcomes[trajectory.outcome.value] += 1
        self.tokens.add(trajectory)
        if trajectory.outcome is not Outcome.CANCELLED:
            self._failures.append(trajectory.outcome.is_infrastructure)
        self.metrics.trial_ended(trajectory)

    def trial_lost(self) -> None:
        """A trial left its host without a trajectory: it was cancelled, or its host was given up."""
        self.in_flight -= 1
        self.metrics.in_flight(self.in_flight)

    def ceiling(self, kind: str, trials: float) -> None:
        """A concurrency ceiling changed."""
        self.ceilings[kind] = trials
        self.metrics.ceiling(kind, trials)

    def step_ended(self, record: StepRecord) -> None:
        """A training step ended and its weights are served."""
        self.weight_version = record.version
        self.metrics.step_ended(record)
        self.headlines |= {
            "reward": record.reward_mean,
            "pass_rate": record.pass_rate,
            "staleness_mean": record.staleness_mean,
            "staleness_max": float(record.staleness_max),
            "logprob_abs_diff": record.logprob_abs_diff_mean,
            "mismatch_kl": record.mismatch_kl,
            "entropy": record.entropy,
            "step_seconds": record.step_seconds,
            "sync_paused_seconds": record.paused_seconds,
        }
        self.track(record.version, {f"train/{name}": value for name, value in record.scalars().items()})

    def cohort_trained(self, version: int, reward: float) -> None:
        """The step that made a version trained the last of the groups that were admitted together."""
        self.metrics.cohort_trained(reward)
        self.track(version, {"train/cohort_reward": reward})

    def groups_left(self, results: Mapping[str, int]) -> None:
        """Groups left the scheduler, by result."""
        self.metrics.groups_left(results)

    def track(self, step: int, scalars: dict[str, float]) -> None:
        """Hand scalars to every tracker."""
        for tracker in self.trackers:
            tracker.log(step, scalars)

    def snapshot(self) -> Progress:
        """The run as it is now."""
        percent = 100.0 * self._done / self._total if self._total else 0.0
        return Progress(
            run=self.run,
            stage=self._stage.name if self._stage else "",
            activity=self._activity if isinstance(self._activity, str) else self._activity(),
            step=self._done,
            of=self._total,
            unit=self._unit,
            percent=min(100.0, percent),
            estimated_remaining_seconds=self._remaining(),
            weight_version=self.weight_version,
            metrics=self._headlines(),
            ceilings=dict(self.ceilings),
            in_flight=self.in_flight,
            outcomes=dict(self.outcomes),
            stages=[self._stage_progress(stage) for stage in self.stages],
            checkpoints=self.checkpoints,
            elapsed_seconds=self.clock.now() - self._started_at,
            engines=self.engines,
            sandbox=self.sandbox,
            ended=self._ended,
            message=self._message,
        )

    def close(self) -> None:
        """Flush every tracker."""
        for tracker in self.trackers:
            tracker.close()

    def _headlines(self) -> dict[str, float]:
        """What was measured, and what goes on with every trial and with time."""
        moving = {"error_rate": fmean(self._failures)} if self._failures else {}
        if (hit_rate := self.tokens.hit_rate) is not None:
            moving["prefix_cache_hit_rate"] = hit_rate
        if self.spending.has_prices:
            moving["cost_dollars"] = self.spending.dollars
        return self.headlines | moving

    def _remaining(self) -> float | None:
        if not self._done or not self._total:
            return None
        elapsed = self.clock.now() - self._units_started_at
        return elapsed / self._done * (self._total - self._done)

    def _stage_progress(self, stage: StageSpec) -> StageProgress:
        report = self._reports.get(stage.name)
        if report is not None:
            return StageProgress(
                name=stage.name,
                kind=report.kind,
                result=report.result,
                gates=report.gates,
                seconds=report.seconds,
                message=report.message,
                checkpoint=report.checkpoint,
                needs_change=report.needs_change,
            )
        if self._stage is not None and stage.name == self._stage.name:
            seconds = self.clock.now() - self._stage_started_at
            return StageProgress(name=stage.name, kind=stage.kind, gates=list(self._gates), seconds=seconds)
        return StageProgress(name=stage.name, kind=stage.kind)
