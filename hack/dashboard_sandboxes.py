"""The dashboard of sandboxes: what the broker keeps warm, hands out and loses, by world."""

from dashboard_panels import Form, Panel, Query, Row

from seatrial_api import metrics as table
from seatrial_api.metrics import Metric

_BROKERS = f"on (instance) group by (instance) ({table.BROKER_SERVING.name})"


def _team(metric: Metric, suffix: str = "", labels: str = "") -> str:
    """Series of the chosen team's worlds."""
    more = f",{labels}" if labels else ""
    return f'{metric.name}{suffix}{{team="$team"{more}}}'


def _rate(label: str, metric: Metric, labels: str = "") -> str:
    return f"sum by ({label}) (rate({_team(metric, labels=labels)}[$__rate_interval]))"


def _quantile(level: float) -> str:
    buckets = f"sum by (world, le) (rate({_team(table.BROKER_CLAIM_SECONDS, '_bucket')}[$__rate_interval]))"
    return f"histogram_quantile({level}, {buckets})"


SANDBOX_ROWS = (
    Row(
        "Pools",
        (
            Panel(
                "Sandboxes",
                "By world and state. `starting` is near 0 once a pool is warm; `claimed` follows the trials in flight.",
                (
                    Query(
                        f"sum by (world, state) ({_team(table.SANDBOXES, labels='state!="waiting"')})",
                        "{{world}} {{state}}",
                    ),
                ),
                form=Form.STACK,
            ),
            Panel(
                "Claims that wait",
                "0 when healthy; else raise the pool's ceiling, or run fewer trials.",
                (Query(f"sum by (world) ({_team(table.SANDBOXES, labels='state="waiting"')})", "{{world}}"),),
            ),
            Panel(
                "Worlds with a problem",
                "What keeps sandboxes from being made; none when healthy.",
                (
                    Query(
                        f"sum by (world, kind) ({_team(table.BROKER_PROBLEM)}) "
                        f"or 0 * sum by (world) ({_team(table.SANDBOXES)})",
                        "{{world}} {{kind}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Claims",
        (
            Panel(
                "Time of a claim",
                "By the broker, the wait for a sandbox included. Milliseconds while there are warm ones.",
                (Query(_quantile(0.5), "p50 {{world}}"), Query(_quantile(0.99), "p99 {{world}}")),
                "s",
            ),
            Panel(
                "Claims",
                "A second, by result: `Served`, or why not.",
                (Query(_rate("result", table.BROKER_CLAIMS), "{{result}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Sandboxes lost by trials",
                "A second, by kind of failure. 0 when healthy: each costs a trial, or its replay.",
                (
                    Query(
                        f"{_rate('kind', table.BROKER_LOST)} "
                        f"or 0 * sum (rate({_team(table.BROKER_CLAIMS)}[$__rate_interval]))",
                        "{{kind}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Cost of the broker",
        (
            Panel(
                "Pods made",
                "A second, by world. About one for each claim.",
                (Query(_rate("world", table.BROKER_CREATED), "{{world}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Requests to the API server",
                "A second, by verb and resource, watches aside. One patch of a pod for each claim.",
                (
                    Query(
                        f"sum by (verb, resource) (rate({table.KUBE_REQUESTS.name}[$__rate_interval]) and {_BROKERS})",
                        "{{verb}} {{resource}}",
                    ),
                ),
                form=Form.STACK,
            ),
            Panel(
                "CPU and memory",
                "Cores, and resident memory in GiB, of each broker.",
                (
                    Query(f"rate(process_cpu_seconds_total[$__rate_interval]) and {_BROKERS}", "cores {{instance}}"),
                    Query(f"process_resident_memory_bytes / 2^30 and {_BROKERS}", "GiB {{instance}}"),
                ),
            ),
        ),
    ),
)
