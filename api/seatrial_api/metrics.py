"""Every metric that Seatrial exports, in one table; exporters build theirs from it, dashboards are checked against it.

Names follow Prometheus: base units, `_total` on counters, labels from closed or bounded sets. A driver adds the
constant labels `namespace` and `run` to all of its metrics; the operator, which serves all runs, does not.
"""

from dataclasses import dataclass
from enum import StrEnum

CONSTANT_LABELS = ("namespace", "run")
"""Added by the driver, not by the metric."""


class MetricKind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    """Only rises, from 0 at the start of the process."""
    GAUGE = "gauge"
    """Rises and falls."""
    HISTOGRAM = "histogram"
    """Counts observations by bucket."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, rising; `+Inf` is added by the exporter."""


_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)

TRIALS_IN_FLIGHT = Metric("seatrial_rollout_trials_in_flight", MetricKind.GAUGE, "Trials that run now.", ("stage",))
CONCURRENCY_CEILING = Metric(
    "seatrial_rollout_concurrency_ceiling",
    MetricKind.GAUGE,
    "Trials that may be in flight, by what bounds them: `systems`, `algorithmic`, `places` or `live`.",
    ("kind",),
)
STALENESS_STEPS = Metric(
    "seatrial_staleness_steps",
    MetricKind.HISTOGRAM,
    "Steps between a group's admission and its training.",
    buckets=_STEPS,
)
STALENESS_HOLD_SECONDS = Metric(
    "seatrial_staleness_hold_seconds",
    MetricKind.HISTOGRAM,
    "Time that a training step waited for a group that is due.",
    buckets=_SECONDS,
)
GROUPS = Metric(
    "seatrial_groups_total",
    MetricKind.COUNTER,
    "Groups that left the scheduler, by result: `Trained`, `RefillsSpent`, `TaskBroken`, `NotRestored`.",
    ("result",),
)
LOGPROB_ABS_DIFF = Metric(
    "seatrial_logprob_abs_diff",
    MetricKind.GAUGE,
    "Absolute logprob difference between engine and trainer over the newest batch: `mean`, `max`.",
    ("stat",),
)
MISMATCH_KL = Metric(
    "seatrial_mismatch_kl",
    MetricKind.GAUGE,
    "Mean of r - log r - 1 between trainer and engine, over the newest batch.",
)
BUFFER_WAIT_SECONDS = Metric(
    "seatrial_buffer_wait_seconds",
    MetricKind.HISTOGRAM,
    "Time that a training step waited for its batch.",
    buckets=_SECONDS,
)
WEIGHT_SYNC_SECONDS = Metric(
    "seatrial_weight_sync_seconds",
    MetricKind.HISTOGRAM,
    "Time from a finished step to engines that serve its weights.",
    buckets=_SECONDS,
)
WEIGHT_SYNC_PAUSED_SECONDS = Metric(
    "seatrial_weight_sync_paused_seconds",
    MetricKind.HISTOGRAM,
    "Longest time for which an engine generated nothing while it took weights.",
    buckets=_SECONDS,
)
TRIAL_OUTCOMES = Metric(
    "seatrial_trial_outcomes_total",
    MetricKind.COUNTER,
    "Trials that ended, by outcome.",
    ("stage", "outcome"),
)
TOOL_CALLS = Metric(
    "seatrial_tool_calls_total",
    MetricKind.COUNTER,
    "Tool calls, by server, tool and result: `ok` or `error`.",
    ("server", "tool", "result"),
)
REWARD = Metric(
    "seatrial_reward",
    MetricKind.GAUGE,
    "The verifier's reward over the valid trials of the newest batch, before penalties: `mean`, `std`.",
    ("stat", "domain"),
)
COHORT_REWARD = Metric(
    "seatrial_cohort_reward",
    MetricKind.GAUGE,
    "The verifier's mean reward over the groups that were admitted together, of the newest weight version whose groups "
    "are all trained: free of the order in which short and long tasks end.",
)
PASS_AT_K = Metric("seatrial_pass_at_k", MetricKind.GAUGE, "Unbiased pass@k of the newest validation.", ("k",))
ENTROPY = Metric("seatrial_entropy", MetricKind.GAUGE, "Mean policy entropy in nats per sampled token.")
TOKENS = Metric(
    "seatrial_tokens_total",
    MetricKind.COUNTER,
    "Tokens, by kind: `prompt_cached`, `prompt`, `completion`, `trained`.",
    ("kind",),
)
COST_DOLLARS = Metric(
    "seatrial_cost_dollars_total",
    MetricKind.COUNTER,
    "Money that the run has spent so far, earlier attempts included, at the prices of `spec.cost`: tokens, and node "
    "hours from a driver's start to its end; and what the judge has spent at the prices of its models.",
)
SANDBOX_CLAIM_SECONDS = Metric(
    "seatrial_sandbox_claim_seconds",
    MetricKind.HISTOGRAM,
    "Time from asking for a sandbox to one whose tools answer, by world; by provider where sandboxes are no pods.",
    ("world",),
    _SECONDS,
)
SANDBOX_RESTORES = Metric(
    "seatrial_sandbox_restores_total",
    MetricKind.COUNTER,
    "Sandboxes that took the place of one that had died under a trial.",
    ("stage",),
)
SANDBOX_RESTORE_SECONDS = Metric(
    "seatrial_sandbox_restore_seconds",
    MetricKind.HISTOGRAM,
    "Time that a trial stood still in all because its sandboxes died and were restored.",
    ("stage",),
    _SECONDS,
)
SANDBOX_FINDINGS = Metric(
    "seatrial_sandbox_findings_total",
    MetricKind.COUNTER,
    "What sandboxes' audits found, by kind: acts that were refused or undone (`Refused`, `Tampering`, `LeftRunning`), "
    "and files that were written (`Executable`, `Setuid`, `Secret`, ...).",
    ("stage", "kind"),
)
SANDBOXES = Metric(
    "seatrial_sandboxes",
    MetricKind.GAUGE,
    "Sandboxes by namespace of the team, world and state: `warm`, `starting`, `claimed`; `waiting` counts claims.",
    ("team", "world", "state"),
)
POOL_ENGINES = Metric("seatrial_pool_engines", MetricKind.GAUGE, "Engines of a pool on its own, by state.", ("state",))
POOL_REQUESTS = Metric(
    "seatrial_pool_requests_total",
    MetricKind.COUNTER,
    "Requests to a pool on its own, by route and HTTP status.",
    ("route", "code"),
)
POOL_REQUEST_SECONDS = Metric(
    "seatrial_pool_request_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request to a pool on its own to the end of the answer.",
    ("route",),
    _SECONDS,
)
POOL_ENGINE_REQUESTS = Metric(
    "seatrial_pool_engine_requests",
    MetricKind.GAUGE,
    "Requests in the engines of a pool on its own: `running` or `waiting`.",
    ("state",),
)
POOL_KV_USAGE = Metric(
    "seatrial_pool_kv_usage_ratio", MetricKind.GAUGE, "Share of the KV cache in use, over all engines of the pool."
)
RECONCILE_SECONDS = Metric(
    "seatrial_reconcile_seconds",
    MetricKind.HISTOGRAM,
    "Time of one reconciliation in the operator.",
    ("kind",),
    _SECONDS,
)
RECONCILE_ERRORS = Metric(
    "seatrial_reconcile_errors_total",
    MetricKind.COUNTER,
    "Reconciliations that raised an error and are tried again, by kind of object.",
    ("kind",),
)
RECONCILE_QUEUE = Metric(
    "seatrial_reconcile_queue",
    MetricKind.GAUGE,
    "Objects that wait to be reconciled in the operator and are due.",
)
KUBE_REQUESTS = Metric(
    "seatrial_kube_requests_total",
    MetricKind.COUNTER,
    "Requests of the operator to the API server, watches aside.",
    ("verb", "resource"),
)
RUNS = Metric("seatrial_runs", MetricKind.GAUGE, "RLRuns by phase, as the operator sees them.", ("phase",))
BROKER_SERVING = Metric("seatrial_broker_serving", MetricKind.GAUGE, "1 in the broker that serves, 0 in others.")
BROKER_PROBLEM = Metric(
    "seatrial_broker_problem",
    MetricKind.GAUGE,
    "1 while something keeps sandboxes of the world from being made, by kind of failure.",
    ("team", "world", "kind"),
)
BROKER_CREATED = Metric(
    "seatrial_broker_sandboxes_created_total",
    MetricKind.COUNTER,
    "Pods that the broker made.",
    ("team", "world"),
)
BROKER_CLAIMS = Metric(
    "seatrial_broker_claims_total",
    MetricKind.COUNTER,
    "Claims that were answered, by result: `Served`, or the kind of failure.",
    ("team", "world", "result"),
)
BROKER_CLAIM_SECONDS = Metric(
    "seatrial_broker_claim_seconds",
    MetricKind.HISTOGRAM,
    "Time from a claim to its answer by the broker, the wait for a sandbox included.",
    ("team", "world"),
    _SECONDS,
)
BROKER_LOST = Metric(
    "seatrial_broker_sandboxes_lost_total",
    MetricKind.COUNTER,
    "Sandboxes that trials lost, by kind of failure.",
    ("team", "world", "kind"),
)
STAGE_INFO = Metric(
    "seatrial_stage_info",
    MetricKind.GAUGE,
    "1 for the stage that runs now.",
    ("stage", "stage_kind"),
)

METRICS = (
    TRIALS_IN_FLIGHT,
    CONCURRENCY_CEILING,
    STALENESS_STEPS,
    STALENESS_HOLD_SECONDS,
    GROUPS,
    LOGPROB_ABS_DIFF,
    MISMATCH_KL,
    BUFFER_WAIT_SECONDS,
    WEIGHT_SYNC_SECONDS,
    WEIGHT_SYNC_PAUSED_SECONDS,
    TRIAL_OUTCOMES,
    TOOL_CALLS,
    REWARD,
    COHORT_REWARD,
    PASS_AT_K,
    ENTROPY,
    TOKENS,
    COST_DOLLARS,
    SANDBOX_CLAIM_SECONDS,
    SANDBOX_RESTORES,
    SANDBOX_RESTORE_SECONDS,
    SANDBOX_FINDINGS,
    SANDBOXES,
    POOL_ENGINES,
    POOL_REQUESTS,
    POOL_REQUEST_SECONDS,
    POOL_ENGINE_REQUESTS,
    POOL_KV_USAGE,
    RECONCILE_SECONDS,
    RECONCILE_ERRORS,
    RECONCILE_QUEUE,
    KUBE_REQUESTS,
    RUNS,
    BROKER_SERVING,
    BROKER_PROBLEM,
    BROKER_CREATED,
    BROKER_CLAIMS,
    BROKER_CLAIM_SECONDS,
    BROKER_LOST,
    STAGE_INFO,
)
"""All of them, in the order of this page."""
