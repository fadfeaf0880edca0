"""The dashboard of a pool that stands alone: every panel with its queries."""

from dashboard_panels import Form, Panel, Query, Row

from seatrial_api import metrics as table
from seatrial_api.metrics import Metric


def _pool(metric: Metric, suffix: str = "", labels: str = "") -> str:
    """Series of the chosen pool; Prometheus adds the two labels when it scrapes."""
    more = f",{labels}" if labels else ""
    return f'{metric.name}{suffix}{{namespace="$namespace",seatrial_dev_pool="$pool"{more}}}'


def _by(label: str, metric: Metric) -> str:
    return f"sum by ({label}) (rate({_pool(metric)}[$__rate_interval]))"


def _quantile(level: float) -> str:
    buckets = f"sum by (le) (rate({_pool(table.POOL_REQUEST_SECONDS, '_bucket')}[$__rate_interval]))"
    return f"histogram_quantile({level}, {buckets})"


POOL_ROWS = (
    Row(
        "Engines",
        (
            Panel(
                "Engines",
                "By state; all of them `Ready` when healthy.",
                (Query(f"sum by (state) ({_pool(table.POOL_ENGINES)})", "{{state}}"),),
                form=Form.STACK,
            ),
            Panel(
                "KV cache",
                "Share in use over all engines. Near 1, requests wait or are preempted: scale the pool.",
                (Query(f"max({_pool(table.POOL_KV_USAGE)})", "in use"),),
                "percentunit",
            ),
            Panel(
                "Requests in the engines",
                "Requests that run, and those that wait for room.",
                (Query(f"sum by (state) ({_pool(table.POOL_ENGINE_REQUESTS)})", "{{state}}"),),
            ),
        ),
    ),
    Row(
        "Clients",
        (
            Panel(
                "Requests",
                "A second, by HTTP status.",
                (Query(_by("code", table.POOL_REQUESTS), "{{code}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Time of a request",
                "From the request to the end of the answer.",
                (Query(_quantile(0.5), "p50"), Query(_quantile(0.95), "p95")),
                "s",
            ),
            Panel(
                "Tokens",
                "A second, by kind; `prompt_cached` came from the prefix cache.",
                (Query(_by("kind", table.TOKENS), "{{kind}}"),),
                form=Form.STACK,
            ),
        ),
    ),
)
