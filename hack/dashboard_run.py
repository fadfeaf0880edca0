"""The dashboard of one run: every panel with its queries."""

from dashboard_panels import Form, Panel, Query, Row

from seatrial_api import metrics as table
from seatrial_api.metrics import Metric
from seatrial_api.outcome import Outcome

LOSSES = tuple(outcome for outcome in Outcome if outcome.is_infrastructure and outcome is not Outcome.CANCELLED)
"""Outcomes by which infrastructure loses a trial; one that was cancelled is nobody's fault."""


def _run(metric: Metric, suffix: str = "", labels: str = "") -> str:
    """Series of the chosen run."""
    more = f",{labels}" if labels else ""
    return f'{metric.name}{suffix}{{namespace="$namespace",run="$run"{more}}}'


def _mean(metric: Metric) -> str:
    """Mean of a histogram's observations in the rate interval."""
    total, count = (f"sum(rate({_run(metric, suffix)}[$__rate_interval]))" for suffix in ("_sum", "_count"))
    return f"{total} / ({count} > 0)"


def _quantile(level: float, metric: Metric) -> str:
    buckets = f"sum by (le) (rate({_run(metric, '_bucket')}[$__rate_interval]))"
    return f"histogram_quantile({level}, {buckets})"


def _by(label: str, metric: Metric, labels: str = "") -> str:
    return f"sum by ({label}) (rate({_run(metric, labels=labels)}[$__rate_interval]))"


_OUTCOMES = f"sum(rate({_run(table.TRIAL_OUTCOMES)}[$__rate_interval]))"
_LOST = _run(table.TRIAL_OUTCOMES, labels=f'outcome=~"{"|".join(LOSSES)}"')
_INFRASTRUCTURE = f"sum(rate({_LOST}[$__rate_interval]))"
_TOOL_CALLS = f"sum by (server, tool) (rate({_run(table.TOOL_CALLS)}[$__rate_interval]))"
_FAILED_CALLS = _run(table.TOOL_CALLS, labels='result="error"')
_TOOL_ERRORS = f"sum by (server, tool) (rate({_FAILED_CALLS}[$__rate_interval])) or 0 * {_TOOL_CALLS}"
_STALENESS = _run(table.STALENESS_STEPS, "_bucket")

RUN_ROWS = (
    Row(
        "Where it stands",
        (
            Panel(
                "Stage",
                "The stage that runs now.",
                (Query(_run(table.STAGE_INFO) + " == 1", "{{stage}}"),),
                form=Form.NAME,
                span=4,
            ),
            Panel(
                "Reward",
                "Mean of the verifier's reward over the newest batch, before penalties.",
                (Query(_run(table.REWARD, labels='stat="mean",domain=""')),),
                form=Form.NUMBER,
                span=4,
            ),
            Panel(
                "Validation",
                "pass@1 of the newest validation. Falls while reward rises: the policy exploits its training tasks.",
                (Query(_run(table.PASS_AT_K, labels='k="1"')),),
                "percentunit",
                Form.NUMBER,
                span=4,
            ),
            Panel(
                "Trials in flight",
                "Trials that run now.",
                (Query(f"sum({_run(table.TRIALS_IN_FLIGHT)})"),),
                form=Form.NUMBER,
                span=4,
            ),
            Panel(
                "Tokens",
                "Sampled tokens a second, over all engines.",
                (Query(f"sum({_by('kind', table.TOKENS, 'kind="completion"')})"),),
                form=Form.NUMBER,
                span=4,
            ),
            Panel(
                "Cost of tokens",
                "Dollars since the driver started, at the prices of spec.cost; nodes are not in it.",
                (Query(f"sum({_run(table.COST_DOLLARS)})"),),
                "currencyUSD",
                Form.NUMBER,
                span=4,
            ),
        ),
    ),
    Row(
        "Learning",
        (
            Panel(
                "Reward by domain",
                "Mean over the valid trials of each batch. Should rise, noisily.",
                (Query(_run(table.REWARD, labels='stat="mean",domain!=""'), "{{domain}}"),),
            ),
            Panel(
                "Reward by admission",
                "Mean over groups that were admitted together. Free of the first steps' dip: short tasks end first.",
                (Query(_run(table.COHORT_REWARD), "reward"),),
            ),
            Panel(
                "Spread of rewards",
                "Standard deviation over a batch; near 0 there is nothing to learn from.",
                (Query(_run(table.REWARD, labels='stat="std"'), "std"),),
            ),
            Panel(
                "Pass rate of validations",
                "Unbiased pass@k.",
                (Query(_run(table.PASS_AT_K), "pass@{{k}}"),),
                "percentunit",
            ),
            Panel(
                "Entropy",
                "Nats per sampled token. Falls slowly when healthy; a collapse or a rise is not.",
                (Query(_run(table.ENTROPY), "entropy"),),
            ),
            Panel(
                "Logprob mismatch",
                "Absolute difference between engine and trainer. Flat when healthy; a jump at one step points to a "
                "weight sync.",
                (Query(_run(table.LOGPROB_ABS_DIFF), "{{stat}}"),),
            ),
            Panel(
                "Mismatch KL",
                "Mean of r - log r - 1 between trainer and engine.",
                (Query(_run(table.MISMATCH_KL), "KL"),),
            ),
        ),
    ),
    Row(
        "The loop",
        (
            Panel(
                "Concurrency and its ceilings",
                "Trials in flight against what bounds them: `live` is what admission allows now.",
                (
                    Query(f"sum({_run(table.TRIALS_IN_FLIGHT)})", "in flight"),
                    Query(_run(table.CONCURRENCY_CEILING), "{{kind}}"),
                ),
            ),
            Panel(
                "Staleness",
                "Steps between a group's admission and its training; never above maxStalenessSteps.",
                (Query(f"sum by (le) (increase({_STALENESS}[$__rate_interval]))", "{{le}}"),),
                form=Form.HEATMAP,
            ),
            Panel(
                "Groups",
                "Groups that left the scheduler, by result, a second.",
                (Query(_by("result", table.GROUPS), "{{result}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Waiting for batches",
                "Mean time that a step waited for its batch, and the part of it spent on groups that were due.",
                (
                    Query(_mean(table.BUFFER_WAIT_SECONDS), "batch"),
                    Query(_mean(table.STALENESS_HOLD_SECONDS), "due groups"),
                ),
                "s",
            ),
            Panel(
                "Weight sync",
                "From a finished step to engines that serve its weights, and how long engines generate nothing for it.",
                (
                    Query(_quantile(0.5, table.WEIGHT_SYNC_SECONDS), "p50"),
                    Query(_quantile(0.95, table.WEIGHT_SYNC_SECONDS), "p95"),
                    Query(_quantile(0.5, table.WEIGHT_SYNC_PAUSED_SECONDS), "paused, p50"),
                ),
                "s",
            ),
            Panel(
                "Tokens",
                "Tokens a second by kind; `prompt_cached` came from the prefix cache.",
                (Query(_by("kind", table.TOKENS), "{{kind}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Cost of tokens",
                "Dollars an hour, at the prices of spec.cost.",
                (Query(f"3600 * sum(rate({_run(table.COST_DOLLARS)}[$__rate_interval]))", "dollars an hour"),),
                "currencyUSD",
            ),
        ),
    ),
    Row(
        "Failures",
        (
            Panel(
                "Outcomes by class",
                "Share of trials that infrastructure lost. Below 1 % when healthy; such trials are never trained.",
                (Query(f"({_INFRASTRUCTURE} or 0 * {_OUTCOMES}) / ({_OUTCOMES} > 0)", "infrastructure"),),
                "percentunit",
            ),
            Panel(
                "Outcomes",
                "Trials that ended, by outcome, a second.",
                (Query(_by("outcome", table.TRIAL_OUTCOMES), "{{outcome}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Failed tool calls",
                "Share of a tool's calls that it answered with an error. Falls while the policy learns to use it.",
                (Query(f"({_TOOL_ERRORS}) / ({_TOOL_CALLS} > 0)", "{{server}}_{{tool}}"),),
                "percentunit",
            ),
            Panel(
                "Tool calls",
                "Calls a second, by tool.",
                (Query(_TOOL_CALLS, "{{server}}_{{tool}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Sandboxes",
                "Time from asking for a sandbox to one whose tools answer.",
                (
                    Query(_quantile(0.5, table.SANDBOX_CLAIM_SECONDS), "p50"),
                    Query(_quantile(0.95, table.SANDBOX_CLAIM_SECONDS), "p95"),
                ),
                "s",
            ),
            Panel(
                "Audits",
                "What sandboxes' audits found, a second, by kind.",
                (Query(_by("kind", table.SANDBOX_FINDINGS), "{{kind}}"),),
                form=Form.STACK,
            ),
            Panel(
                "Restored sandboxes",
                "Sandboxes that died under a trial and were replaced, with the trial going on, a second.",
                (Query(f"sum(rate({_run(table.SANDBOX_RESTORES)}[$__rate_interval])) or 0 * {_OUTCOMES}"),),
            ),
        ),
    ),
)
