import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from seatrial_api import metrics as table
from seatrial_api.ceilings import Usage
from seatrial_api.finding import Finding, FindingKind
from seatrial_api.outcome import Outcome
from seatrial_api.progress import Progress
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.observability.server import serve
from tests.steps import make_step
from tests.trajectories import make_trajectory


def filled_metrics() -> RunMetrics:
    metrics = RunMetrics("team", "quickstart")
    metrics.stage_started("train", "Train")
    metrics.in_flight(3)
    metrics.ceiling("live", 64)
    metrics.trial_ended(make_trajectory(failed_calls=1))
    metrics.trial_ended(make_trajectory("g/1", outcome=Outcome.SANDBOX_FAILED))
    metrics.step_ended(make_step(version=1, staleness={0: 2, 1: 6}, groups=8, rewards_by_domain={"finance": 0.5}))
    metrics.cohort_trained(0.25)
    metrics.groups_left({"Trained": 8, "TaskBroken": 1})
    metrics.validated({1: 0.4})
    metrics.engines_looked_at(PoolMetrics(prompt_tokens_total=1_000_000, generated_tokens_total=100_000))
    metrics.costs(lambda: 3.5)
    return metrics


async def scrape(metrics: RunMetrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    async with (
        serve("127.0.0.1", 0, lambda: Progress(run="quickstart", step=3), metrics.registry) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        async with session.get(f"{url}/v1/progress") as answer:
            assert Progress.model_validate_json(await answer.read()).step == 3
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


async def test_every_metric_of_the_driver_is_exported_under_its_name_with_run_and_namespace() -> None:
    samples = await scrape(filled_metrics())
    bases = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in samples}
    others = ("sandbox", "broker_", "pool_", "reconcile_", "kube_", "runs")
    of_others = tuple(f"seatrial_{part}" for part in others)
    assert {metric.name for metric in table.METRICS if not metric.name.startswith(of_others)} <= bases
    for name, by_labels in samples.items():
        if not name.endswith("_created"):
            assert all({("namespace", "team"), ("run", "quickstart")} <= set(labels) for labels in by_labels), name


async def test_counts_add_up() -> None:
    metrics = filled_metrics()
    used = metrics.engines_looked_at(
        PoolMetrics(prompt_tokens_total=1_500_000, cached_tokens_total=500_000, generated_tokens_total=100_000)
    )
    assert used == Usage(cached_prompt_tokens=500_000)
    samples = await scrape(metrics)
    assert list(samples["seatrial_cost_dollars_total"].values()) == [3.5]
    by_kind = {dict(labels)["kind"]: value for labels, value in samples["seatrial_tokens_total"].items()}
    assert by_kind == {"prompt_cached": 500_000, "prompt": 1_000_000, "completion": 100_000, "trained": 0}
    (count,) = samples["seatrial_staleness_steps_count"].values()
    assert count == 8
    outcomes = {dict(labels)["outcome"] for labels in samples["seatrial_trial_outcomes_total"]}
    assert outcomes == {"Completed", "SandboxFailed"}


async def test_sandboxes_that_were_restored_are_counted_and_timed() -> None:
    metrics = filled_metrics()
    metrics.trial_ended(make_trajectory().model_copy(update={"num_restores": 2, "restore_seconds": 1.5}))
    samples = await scrape(metrics)
    assert list(samples["seatrial_sandbox_restores_total"].values()) == [2]
    assert list(samples["seatrial_sandbox_restore_seconds_sum"].values()) == [1.5]
    assert list(samples["seatrial_sandbox_restore_seconds_count"].values()) == [1]


async def test_what_audits_found_is_counted_by_kind() -> None:
    metrics = filled_metrics()
    found = [Finding(kind=kind) for kind in (FindingKind.TAMPERING, FindingKind.TAMPERING, FindingKind.SECRET)]
    metrics.trial_ended(make_trajectory().model_copy(update={"findings": found}))
    samples = (await scrape(metrics))["seatrial_sandbox_findings_total"]
    counts = {dict(labels)["kind"]: value for labels, value in samples.items()}
    assert {kind: count for kind, count in counts.items() if count} == {"Tampering": 2, "Secret": 1}
    assert counts.keys() == set(FindingKind), "each is counted from the stage's first moment on"


async def test_only_the_running_stage_is_shown_as_running() -> None:
    metrics = filled_metrics()
    metrics.stage_started("best", "Evaluate")
    samples = await scrape(metrics)
    (labels,) = samples["seatrial_stage_info"]
    assert dict(labels)["stage"] == "best"


async def test_names_that_the_model_makes_up_do_not_become_labels() -> None:
    metrics = RunMetrics("team", "quickstart")
    trajectory = make_trajectory()
    call = trajectory.turns[0].tool_calls[0].model_copy(update={"server": "", "tool": "rm -rf"})
    turn = trajectory.turns[0].model_copy(update={"tool_calls": [call]})
    metrics.trial_ended(trajectory.model_copy(update={"turns": [turn]}))
    samples = await scrape(metrics)
    assert {dict(labels)["tool"] for labels in samples["seatrial_tool_calls_total"]} == {"unknown"}
