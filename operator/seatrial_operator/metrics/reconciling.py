"""What the operator exports."""

from prometheus_client import Counter, Gauge, Histogram

from seatrial_api import metrics as table
from seatrial_operator.metrics.process import REGISTRY

RECONCILE_SECONDS = Histogram(
    table.RECONCILE_SECONDS.name,
    table.RECONCILE_SECONDS.help,
    table.RECONCILE_SECONDS.labels,
    buckets=table.RECONCILE_SECONDS.buckets,
    registry=REGISTRY,
)
RECONCILE_ERRORS = Counter(
    table.RECONCILE_ERRORS.name, table.RECONCILE_ERRORS.help, table.RECONCILE_ERRORS.labels, registry=REGISTRY
)
RECONCILE_QUEUE = Gauge(table.RECONCILE_QUEUE.name, table.RECONCILE_QUEUE.help, registry=REGISTRY)
RUNS = Gauge(table.RUNS.name, table.RUNS.help, table.RUNS.labels, registry=REGISTRY)
