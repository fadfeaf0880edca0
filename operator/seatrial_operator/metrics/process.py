"""What every process of this package exports."""

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics

from seatrial_api import metrics as table

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter

REGISTRY = CollectorRegistry()
"""All that `/metrics` serves."""
ProcessCollector(registry=REGISTRY)

KUBE_REQUESTS = Counter(
    table.KUBE_REQUESTS.name, table.KUBE_REQUESTS.help, table.KUBE_REQUESTS.labels, registry=REGISTRY
)
