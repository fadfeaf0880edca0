"""The dashboard of the operator: every panel with its queries."""

from dashboard_panels import Form, Panel, Query, Row

from seatrial_api import metrics as table

_OPERATORS = f"on (instance) group by (instance) ({table.RECONCILE_QUEUE.name})"
_RECONCILIATIONS = f"sum by (kind) (rate({table.RECONCILE_SECONDS.name}_count[$__rate_interval]))"
_REQUESTS = f"rate({table.KUBE_REQUESTS.name}[$__rate_interval]) and {_OPERATORS}"
_ERRORS = f"sum by (kind) (rate({table.RECONCILE_ERRORS.name}[$__rate_interval]))"

OPERATOR_ROWS = (
    Row(
        "Runs",
        (
            Panel(
                "Runs by phase",
                "RLRuns, as the operator that leads sees them.",
                (Query(f"max by (phase) ({table.RUNS.name})", "{{phase}}"),),
                form=Form.STACK,
                span=12,
            ),
            Panel(
                "Objects that wait",
                "Objects that are due and wait to be reconciled. Near 0 when healthy.",
                (Query(f"max({table.RECONCILE_QUEUE.name})", "queue"),),
                span=12,
            ),
        ),
    ),
    Row(
        "Reconciliation",
        (
            Panel(
                "Time of a reconciliation",
                "Of those in the rate interval, by kind of object.",
                tuple(
                    Query(
                        f"histogram_quantile({level}, sum by (kind, le) "
                        f"(rate({table.RECONCILE_SECONDS.name}_bucket[$__rate_interval])))",
                        f"p{level * 100:.0f} {{{{kind}}}}",
                    )
                    for level in (0.5, 0.99)
                ),
                "s",
            ),
            Panel(
                "Reconciliations",
                "A second, by kind of object.",
                (Query(_RECONCILIATIONS, "{{kind}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Errors",
                "Reconciliations a second that raised and are tried again. 0 when healthy.",
                (Query(f"{_ERRORS} or 0 * {_RECONCILIATIONS}", "{{kind}}"),),
            ),
        ),
    ),
    Row(
        "Cost of the operator",
        (
            Panel(
                "Requests to the API server",
                "A second, by verb and resource, watches aside.",
                (
                    Query(
                        f"sum by (verb, resource) ({_REQUESTS})",
                        "{{verb}} {{resource}}",
                    ),
                ),
                form=Form.STACK,
            ),
            Panel(
                "Memory",
                "Resident memory of each operator.",
                (Query(f"process_resident_memory_bytes and {_OPERATORS}", "{{instance}}"),),
                "bytes",
            ),
            Panel(
                "CPU",
                "Cores that each operator uses.",
                (Query(f"rate(process_cpu_seconds_total[$__rate_interval]) and {_OPERATORS}", "{{instance}}"),),
            ),
        ),
    ),
)
