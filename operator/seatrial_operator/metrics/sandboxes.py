"""What the broker exports."""

from prometheus_client import Counter, Gauge, Histogram

from seatrial_api import metrics as table
from seatrial_operator.metrics.process import REGISTRY

SERVING = Gauge(table.BROKER_SERVING.name, table.BROKER_SERVING.help, registry=REGISTRY)
SANDBOXES = Gauge(table.SANDBOXES.name, table.SANDBOXES.help, table.SANDBOXES.labels, registry=REGISTRY)
PROBLEM = Gauge(table.BROKER_PROBLEM.name, table.BROKER_PROBLEM.help, table.BROKER_PROBLEM.labels, registry=REGISTRY)
CREATED = Counter(table.BROKER_CREATED.name, table.BROKER_CREATED.help, table.BROKER_CREATED.labels, registry=REGISTRY)
CLAIMS = Counter(table.BROKER_CLAIMS.name, table.BROKER_CLAIMS.help, table.BROKER_CLAIMS.labels, registry=REGISTRY)
CLAIM_SECONDS = Histogram(
    table.BROKER_CLAIM_SECONDS.name,
    table.BROKER_CLAIM_SECONDS.help,
    table.BROKER_CLAIM_SECONDS.labels,
    buckets=table.BROKER_CLAIM_SECONDS.buckets,
    registry=REGISTRY,
)
LOST = Counter(table.BROKER_LOST.name, table.BROKER_LOST.help, table.BROKER_LOST.labels, registry=REGISTRY)
