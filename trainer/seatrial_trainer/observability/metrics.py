"""The driver's Prometheus metrics: collectors made from the API's table, and what each event adds to them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, override

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from seatrial_api import metrics as table
from seatrial_api.ceilings import Usage
from seatrial_api.finding import FindingKind
from seatrial_api.metrics import CONSTANT_LABELS, Metric
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_trainer.observability.step_record import StepRecord

_UNKNOWN_TOOL = "unknown"
"""Stands for every name that the model made up, so that a label has a bounded number of values."""


@dataclass
class RunMetrics:
    """All metrics of one driver; every one carries the namespace and the run."""

    namespace: str
    run: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _stage: str = ""
    _engines: PoolMetrics | None = None
    _collectors: dict[str, Any] = field(default_factory=dict)

    def stage_started(self, stage: str, kind: str) -> None:
        """A stage runs now, and no other."""
        collector = self._collector(Gauge, table.STAGE_INFO)
        collector.clear()
        collector.labels(self.namespace, self.run, stage, kind).set(1)
        self._stage = stage
        for finding in FindingKind:  # a series that begins with its first finding would hide that one from rates
            self._add(table.SANDBOX_FINDINGS, 0, stage, finding.value)

    def in_flight(self, trials: int) -> None:
        """Trials in flight."""
        self._set(table.TRIALS_IN_FLIGHT, trials, self._stage)

    def ceiling(self, kind: str, trials: float) -> None:
        """A concurrency ceiling, in trials."""
        self._set(table.CONCURRENCY_CEILING, trials, kind)

    def trial_ended(self, trajectory: Trajectory) -> None:
        """A trial ended, however."""
        self._add(table.TRIAL_OUTCOMES, 1, self._stage, trajectory.outcome.value)
        for turn in trajectory.turns:
            for call in turn.tool_calls:
                tool = call.tool if call.server else _UNKNOWN_TOOL
                self._add(table.TOOL_CALLS, 1, call.server, tool, "error" if call.is_error else "ok")
        if trajectory.num_restores:
            self._add(table.SANDBOX_RESTORES, trajectory.num_restores, self._stage)
            self._observe(table.SANDBOX_RESTORE_SECONDS, trajectory.restore_seconds, self._stage)
        for finding in trajectory.findings:
            self._add(table.SANDBOX_FINDINGS, 1, self._stage, finding.kind.value)
        if "sandbox" in trajectory.phase_seconds:
            self._observe(table.SANDBOX_CLAIM_SECONDS, trajectory.phase_seconds["sandbox"], trajectory.world)

    def step_ended(self, record: StepRecord) -> None:
        """A training step ended and its weights are served."""
        for staleness, groups in record.staleness.items():
            for _ in range(groups):
                self._observe(table.STALENESS_STEPS, staleness)
        self._observe(table.STALENESS_HOLD_SECONDS, record.hold_seconds)
        self._observe(table.BUFFER_WAIT_SECONDS, record.buffer_wait_seconds)
        self._observe(table.WEIGHT_SYNC_SECONDS, record.sync_seconds)
        self._observe(table.WEIGHT_SYNC_PAUSED_SECONDS, record.paused_seconds)
        self._set(table.LOGPROB_ABS_DIFF, record.logprob_abs_diff_mean, "mean")
        self._set(table.LOGPROB_ABS_DIFF, record.logprob_abs_diff_max, "max")
        self._set(table.MISMATCH_KL, record.mismatch_kl)
        self._set(table.ENTROPY, record.entropy)
        self._set(table.REWARD, record.reward_mean, "mean", "")
        self._set(table.REWARD, record.reward_std, "std", "")
        for domain, reward in record.rewards_by_domain.items():
            self._set(table.REWARD, reward, "mean", domain)
        self._add(table.TOKENS, record.trained_tokens, "trained")

    def cohort_trained(self, reward: float) -> None:
        """The last of the groups that were admitted together were trained."""
        self._set(table.COHORT_REWARD, reward)

    def groups_left(self, results: Mapping[str, int]) -> None:
        """Groups left the scheduler since the last call, by result."""
        for result, groups in results.items():
            self._add(table.GROUPS, groups, result)

    def validated(self, pass_at_k: dict[int, float]) -> None:
        """A validation ended."""
        for k, value in pass_at_k.items():
            self._set(table.PASS_AT_K, value, str(k))

    def costs(self, dollars: Callable[[], float]) -> None:
        """Whenever somebody looks, ask this for what the run has cost."""
        self.registry.register(_Cost((self.namespace, self.run), dollars))

    def engines_looked_at(self, engines: PoolMetrics) -> Usage:
        """Count the engines' tokens since the last look; returns them."""
        before = self._engines or PoolMetrics()
        cached = max(0, engines.cached_tokens_total - before.cached_tokens_total)
        prompt = max(0, engines.prompt_tokens_total - before.prompt_tokens_total - cached)
        completion = max(0, engines.generated_tokens_total - before.generated_tokens_total)
        self._engines = engines
        for kind, tokens in (("prompt_cached", cached), ("prompt", prompt), ("completion", completion)):
            self._add(table.TOKENS, tokens, kind)
        return Usage(cached_prompt_tokens=cached, prompt_tokens=prompt, completion_tokens=completion)

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self._collector(Gauge, metric).labels(self.namespace, self.run, *labels).set(value)

    def _add(self, metric: Metric, value: float, *labels: str) -> None:
        self._collector(Counter, metric).labels(self.namespace, self.run, *labels).inc(value)

    def _observe(self, metric: Metric, value: float, *labels: str) -> None:
        self._collector(Histogram, metric).labels(self.namespace, self.run, *labels).observe(value)

    def _collector[T: (Gauge, Counter, Histogram)](self, kind: type[T], metric: Metric) -> T:
        collector = self._collectors.get(metric.name)
        if not isinstance(collector, kind):
            options: dict[str, Any] = {"buckets": metric.buckets} if metric.buckets else {}
            labels = (*CONSTANT_LABELS, *metric.labels)
            collector = kind(metric.name, metric.help, labels, registry=self.registry, **options)
            self._collectors[metric.name] = collector
        return collector


@dataclass(frozen=True)
class _Cost(Collector):
    """What the run has cost, which goes on with time."""

    labels: tuple[str, str]
    dollars: Callable[[], float]

    @override
    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(table.COST_DOLLARS.name, table.COST_DOLLARS.help, labels=CONSTANT_LABELS)
        family.add_metric(self.labels, self.dollars())
        yield family
