"""Arms of an ablation: each trains from the model, is measured, and is held against the first."""

import asyncio
from pathlib import Path
from typing import Any, override

import pytest
import vl_convert

from seatrial_api.errors import InvalidInputError
from seatrial_api.outcome import Outcome
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.stages import AblateStage
from seatrial_api.stage_report import StageReport
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.driver import most_telling
from seatrial_trainer.driver.stages.ablate import ablate
from seatrial_trainer.reporting.arms import arm_charts
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from tests.training_doubles import Moment, NotedCluster, completes, make_context, make_run, watch_nothing

ARMS: list[dict[str, Any]] = [
    {"name": "dppo", "patch": {}},
    {"name": "glm5", "patch": {"algorithm": {"loss": {"name": "glm5"}}}},
    {"name": "sync", "patch": {"async": {"maxStalenessSteps": 0}}},
]
STEPS, PASSES = 3, 4


class ArmsCluster(NotedCluster):
    """What is measured of an arm is solved by its name: `sync` always, the others every other time."""

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        tried = await super().run(ticket)
        if ticket.purpose == "compare.sync-held-out":
            return tried.model_copy(update={"reward": 1.0})
        return tried


def run_of(arms: list[dict[str, Any]]) -> RLRun:
    stage = {"name": "compare", "ablate": {"arms": arms, "steps": STEPS, "passes": PASSES}}
    return make_run(spec__stages__3=stage, spec__stages__4=None)


def context_of(storage: RunStorage, cluster: NotedCluster, arms: list[dict[str, Any]] = ARMS) -> StageContext:
    return make_context(run_of(arms), "compare", storage, cluster)


async def attempt(context: StageContext) -> StageReport:
    stage = context.stage.ablate
    assert isinstance(stage, AblateStage)
    try:
        async with asyncio.timeout(60):
            return await ablate(context, stage)
    except Exception as error:  # noqa: BLE001  what a driver does with it
        raise most_telling(error) from None


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path)


async def test_every_arm_is_trained_from_the_model_and_compared_with_the_first(storage: RunStorage) -> None:
    cluster = ArmsCluster(completes)
    report = await attempt(context_of(storage, cluster))
    dppo, glm5, sync = report.arms
    assert (dppo.verdict, glm5.verdict, sync.verdict) == ("Baseline", "Tie", "Better")
    assert (dppo.pass_at_1.mean, dppo.pass_at_1.num_passes) == (0.5, PASSES)
    assert dppo.pass_at_1.std == pytest.approx((1 / 3) ** 0.5), "passes that solve all or nothing"
    assert sync.gain is not None
    assert (sync.gain.mean, sync.gain.count) == (0.5, 3)
    assert report.message == "sync (+50.0%) is better than dppo; glm5 (+0.0%) is within noise of dppo"
    assert cluster.served == [*range(STEPS + 1)] * 3, "from the model's own weights each time"


async def test_each_arm_trains_under_its_own_spec_and_the_run_goes_on_under_its(storage: RunStorage) -> None:
    cluster = ArmsCluster(completes)
    context = context_of(storage, cluster)
    await attempt(context)
    assert [spec.algorithm.loss.name for spec in cluster.adopted] == ["dppo", "glm5", "dppo", "dppo"]
    assert cluster.adopted[-1] == context.spec
    ages = [step["staleness_max"] for step in storage.stage("compare.sync").read_steps()]
    assert ages == [0] * STEPS


async def test_arms_that_are_done_are_not_run_again_and_the_one_that_was_cut_off_begins_anew(
    storage: RunStorage,
) -> None:
    def die(moment: Moment, version: int) -> None:
        nonlocal trained
        trained += moment == "train"
        if (trained, moment, version) == (STEPS + 2, "train", 1):
            raise OSError("the machine is gone")

    trained = 0
    with pytest.raises(OSError, match="gone"):
        await attempt(context_of(storage, ArmsCluster(completes, die)))
    resumed = ArmsCluster(completes, watch_nothing)
    report = await attempt(context_of(storage, resumed))
    assert resumed.served == [*range(STEPS + 1)] * 2
    assert [arm.verdict for arm in report.arms] == ["Baseline", "Tie", "Better"]
    again = storage.stage("compare.glm5")
    assert [step["version"] for step in again.read_steps()] == [1, 2, 3]
    trained = [group_id for manifest in again.read_batches(0) for group_id in manifest.group_ids]
    assert all(group_id.startswith("compare.glm5-r1-") for group_id in trained), "no id is used a second time"


async def test_infrastructure_is_no_arms_fault(storage: RunStorage) -> None:
    async def often_fails(ticket: TrialTicket) -> Outcome:
        is_hit = ticket.purpose == "compare.glm5-held-out" and ticket.attempt < 3
        return Outcome.SANDBOX_FAILED if is_hit else Outcome.COMPLETED

    report = await attempt(context_of(storage, ArmsCluster(often_fails)))
    assert report.arms[1].verdict == "Tie"
    assert report.arms[1].pass_at_1 == report.arms[0].pass_at_1


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"async": {"weightSync": {"method": "files"}}}, "async.weightSync.method, which the engines"),
        ({"async": {"concurrency": 3}}, "async.concurrency, which the engines"),
        ({"data": {}}, "patches data"),
    ],
)
async def test_an_arm_that_would_need_its_own_engines_is_refused_before_anything_runs(
    storage: RunStorage, patch: dict[str, Any], words: str
) -> None:
    cluster = ArmsCluster(completes)
    with pytest.raises(InvalidInputError, match=words):
        await attempt(context_of(storage, cluster, [*ARMS, {"name": "other", "patch": patch}]))
    assert cluster.adopted == []


async def test_the_report_shows_differences_with_intervals_and_a_curve_of_each_arm(storage: RunStorage) -> None:
    report = await attempt(context_of(storage, ArmsCluster(completes)))
    drawn = arm_charts(report, storage)
    assert all(vl_convert.vegalite_to_svg(chart).startswith("<svg") for chart in drawn)
    differences, reward, _ = drawn
    shown = {row["arm"]: row["verdict"] for layer in differences["layer"][1:] for row in layer["data"]["values"]}
    assert shown == {"glm5": "Tie", "sync": "Better"}
    assert {row["measure"] for row in reward["data"]["values"]} == {"dppo", "glm5", "sync"}
