"""Every query of the dashboards and alerts, in a real Prometheus over what real processes exported."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from seatrial_api.metrics import METRICS, MetricKind
from seatrial_api.outcome import Outcome
from tests.charts import CHART
from tests.prometheus import Prometheus, PrometheusError, needs, replay

RULES = CHART / "rules" / "seatrial.yaml"
ALERTS = {
    rule["alert"]: rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
VARIABLES = {
    "$team": "team-a",
    "$namespace": "default",
    "$run": "quickstart",
    "$pool": "office",
    "$__rate_interval": "1m",
}


def _queries() -> Iterator[tuple[str, str]]:
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                yield f"{path.stem}: {panel['title']} {target['refId']}", expression


QUERIES = dict(_queries())
POOL = "seatrial_dev_pool"
"""What Prometheus makes of the label `seatrial.dev/pool`: it looks like a metric of ours and is none."""


def metrics_in(expression: str) -> set[str]:
    """Our metrics that an expression names."""
    return set(re.findall(r"seatrial_[a-z_]+", expression)) - {POOL}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with replay(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_shows_something_of_a_real_run(prometheus: Prometheus, name: str) -> None:
    found = prometheus.query(QUERIES[name])
    assert any(series["value"][1] != "NaN" for series in found), QUERIES[name]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_quiet_over_a_healthy_run_and_its_series_are_there(prometheus: Prometheus, name: str) -> None:
    assert prometheus.query(ALERTS[name]) == []
    for metric in metrics_in(ALERTS[name]):
        assert metric in MAY_BE_ABSENT or prometheus.query(metric), metric


MAY_BE_ABSENT = {
    "seatrial_reconcile_errors_total",
    "seatrial_broker_problem",
    "seatrial_broker_sandboxes_lost_total",
}
"""Have no series until there is an error."""


def test_a_misspelled_query_is_noticed(prometheus: Prometheus) -> None:
    with pytest.raises(PrometheusError, match="parse error"):
        prometheus.query("sum by (le (x))")


def test_dashboards_and_alerts_name_only_metrics_that_are_in_the_table() -> None:
    known = {
        f"{metric.name}{suffix}"
        for metric in METRICS
        for suffix in (("_sum", "_count", "_bucket") if metric.kind is MetricKind.HISTOGRAM else ("",))
    }
    assert metrics_in(" ".join([*QUERIES.values(), *ALERTS.values()])) <= known


def test_what_is_recorded_is_what_drivers_export_today(prometheus: Prometheus) -> None:
    exported = {series["metric"]["__name__"] for series in prometheus.query('{__name__=~"seatrial_.+"}')}
    names = {re.sub(r"_(sum|count|bucket|created)$", "", name) for name in exported}
    assert names <= {re.sub(r"_(sum|count|bucket)$", "", metric.name) for metric in METRICS}


def test_the_alert_on_infrastructure_knows_every_outcome_by_which_a_trial_is_lost() -> None:
    (listed,) = re.findall(r'outcome=~"([A-Za-z|]+)"', ALERTS["SeatrialInfrastructureFailures"])
    lost = {outcome.value for outcome in Outcome if outcome.is_infrastructure} - {Outcome.CANCELLED.value}
    assert set(listed.split("|")) == lost


@pytest.mark.parametrize(
    "path", [RULES, *sorted(Path(__file__).parent.glob("alerts/*.yaml"))], ids=lambda path: path.name
)
def test_promtool_accepts_the_rules_and_their_tests(path: Path) -> None:
    kind = "check" if path == RULES else "test"
    done = subprocess.run(
        [needs("promtool"), kind, "rules", str(path)], capture_output=True, text=True, check=False, cwd=path.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_to_fire() -> None:
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("alerts/*.yaml"))
    assert [
        name for name in ALERTS if f"exp_alerts: &{name}" not in tests and f"alertname: {name}\n" not in tests
    ] == []
