"""The pool's Prometheus metrics, made from the API's table."""

from collections import Counter as Count
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from seatrial_api import metrics as table
from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.serving import PoolReport
from seatrial_rollout.engine.metrics import PoolMetrics

_STATES = ("Starting", "Ready", "Paused", "Failed")


@dataclass(slots=True)
class RequestOutcome:
    """How a request ended."""

    code: int = HTTPStatus.INTERNAL_SERVER_ERROR.value


class Telemetry:
    """Counts requests; reads what the engines counted when somebody asks."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._engines = self._gauge(table.POOL_ENGINES)
        self._engine_requests = self._gauge(table.POOL_ENGINE_REQUESTS)
        self._kv_usage = self._gauge(table.POOL_KV_USAGE)
        self._requests = self._counter(table.POOL_REQUESTS)
        self._tokens = self._counter(table.TOKENS)
        seconds = table.POOL_REQUEST_SECONDS
        self._seconds = Histogram(
            seconds.name, seconds.help, seconds.labels, buckets=seconds.buckets, registry=self._registry
        )
        self._counted = PoolMetrics()

    @contextmanager
    def timed(self, route: str) -> Iterator[RequestOutcome]:
        """Count a request while the block runs; the block says how it ended."""
        started, outcome = self._clock.now(), RequestOutcome()
        try:
            yield outcome
        finally:
            self._seconds.labels(route=route).observe(self._clock.now() - started)
            self._requests.labels(route=route, code=str(int(outcome.code))).inc()

    def page(self, report: PoolReport, metrics: PoolMetrics) -> tuple[bytes, str]:
        """The metrics page and its content type."""
        states = Count[str](engine.state for engine in report.engines)
        for state in _STATES:
            self._engines.labels(state=state).set(states[state])
        self._engine_requests.labels(state="running").set(metrics.running)
        self._engine_requests.labels(state="waiting").set(metrics.waiting)
        self._kv_usage.set(metrics.kv_usage)
        before, self._counted = self._counted, metrics
        cached = metrics.cached_tokens_total - before.cached_tokens_total
        grown = {
            "prompt_cached": cached,
            "prompt": metrics.prompt_tokens_total - before.prompt_tokens_total - cached,
            "completion": metrics.generated_tokens_total - before.generated_tokens_total,
        }
        for kind, count in grown.items():
            self._tokens.labels(kind=kind).inc(max(0, count))
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _gauge(self, metric: table.Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)

    def _counter(self, metric: table.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self._registry)
