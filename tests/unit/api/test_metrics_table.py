"""The table of metrics keeps Prometheus' rules and the design's names."""

import re

from seatrial_api import metrics
from seatrial_api.metrics import CONSTANT_LABELS, METRICS, Metric, MetricKind

DESIGN = {
    "seatrial_rollout_trials_in_flight",
    "seatrial_rollout_concurrency_ceiling",
    "seatrial_staleness_steps",
    "seatrial_staleness_hold_seconds",
    "seatrial_groups_total",
    "seatrial_logprob_abs_diff",
    "seatrial_mismatch_kl",
    "seatrial_buffer_wait_seconds",
    "seatrial_weight_sync_seconds",
    "seatrial_trial_outcomes_total",
    "seatrial_tool_calls_total",
    "seatrial_reward",
    "seatrial_pass_at_k",
    "seatrial_entropy",
    "seatrial_tokens_total",
    "seatrial_cost_dollars_total",
    "seatrial_sandbox_claim_seconds",
    "seatrial_sandboxes",
    "seatrial_reconcile_seconds",
    "seatrial_stage_info",
}


def test_the_table_holds_every_metric_of_the_design_once() -> None:
    names = [metric.name for metric in METRICS]
    assert set(names) >= DESIGN
    assert len(names) == len(set(names))


def test_no_metric_is_missing_from_the_table() -> None:
    assert [value for value in vars(metrics).values() if isinstance(value, Metric)] == list(METRICS)


def test_counters_end_in_total_and_nothing_else_does() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)


def test_histograms_alone_have_buckets_and_they_rise() -> None:
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_labels_are_plain_and_leave_the_constant_ones_to_the_process() -> None:
    for metric in METRICS:
        assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in metric.labels)
        assert not set(metric.labels) & set(CONSTANT_LABELS)
        assert metric.help.endswith(".")
