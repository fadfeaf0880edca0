"""What a driver tells, taken over into the status of its run."""

import math
from datetime import timedelta
from typing import Any

import pytest

from seatrial_api.playbook import ExitCode
from seatrial_api.progress import Progress, StageProgress
from seatrial_api.stage_report import GateResult, StageResult
from seatrial_api.status import AttemptStatus, Checkpoint, CheckpointStatus, RLRunStatus
from seatrial_operator.plan.news import with_news
from tests.run_world import START, RunWorld, gate

SPEC = RunWorld.of().spec
CURRENT = AttemptStatus(started_at=START)


def news(status: RLRunStatus | None = None, **told: Any) -> RLRunStatus:
    return with_news(status or RLRunStatus(current=CURRENT), Progress(run="run", **told), SPEC, START)


def stage(name: str, **told: Any) -> StageProgress:
    return StageProgress(name=name, kind="Any", **told)


def test_a_stage_has_a_row_once_it_has_begun_in_the_order_of_the_spec() -> None:
    stages = [stage("train", seconds=7.5), stage("preflight", seconds=3.0, result=StageResult.PASSED), stage("after")]
    status = news(stage="train", stages=stages)
    assert [(row.name, row.result) for row in status.stages] == [("preflight", StageResult.PASSED), ("train", None)]
    assert status.stages[1].started_at == START - timedelta(seconds=7)
    assert (status.stages[0].finished_at, status.stages[1].finished_at) == (START, None)


def test_a_row_keeps_its_times_and_what_an_earlier_segment_left() -> None:
    first = news(stages=[stage("preflight", seconds=3.0, result=StageResult.PASSED)])
    later = with_news(
        first,
        Progress(
            run="run", stages=[stage("preflight", seconds=3.0, result=StageResult.PASSED), stage("train", seconds=1)]
        ),
        SPEC,
        START + timedelta(hours=1),
    )
    assert later.stages[0] == first.stages[0]
    after = with_news(later, Progress(run="run", stages=[stage("after", seconds=1)]), SPEC, START)
    assert [row.name for row in after.stages] == ["preflight", "train", "after"]


def test_the_last_stage_that_has_begun_is_told_when_none_runs() -> None:
    stages = [stage(name, seconds=1, result=StageResult.PASSED) for name in ("train", "after")]
    assert news(RLRunStatus(current=CURRENT, stage="train"), stages=stages).stage == "after"


def test_gates_show_value_and_bound_and_what_is_no_number_counts_as_not_measured() -> None:
    (row,) = news(stages=[stage("preflight", seconds=1, gates=[gate(0.02), gate(math.nan)])]).stages
    assert [one.value for one in row.gates] == [0.02, None]
    assert not row.gates[1].passed
    assert row.gates[1].detail.startswith("measured nan")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"step": 3, "of": 9, "percent": 33.9, "estimated_remaining_seconds": 12.7}, (3, 9, 33, 12)),
        ({"step": -1, "of": 0, "percent": math.nan, "estimated_remaining_seconds": math.inf}, (0, 0, 0, None)),
    ],
)
def test_progress_is_whole_numbers_within_their_bounds(told: dict[str, Any], shown: tuple[Any, ...]) -> None:
    progress = news(stage="train", **told).progress
    assert progress is not None
    assert (progress.step, progress.of, progress.percent, progress.estimated_remaining_seconds) == shown


def test_headline_figures_keep_their_last_value_while_a_new_attempt_has_none() -> None:
    figures = {"reward": 0.5, "logprob_abs_diff": math.nan, "error_rate": 0.25, "cost_dollars": 12.5}
    first = news(metrics=figures | {"prefix_cache_hit_rate": 0.75})
    assert first.metrics is not None
    assert (first.metrics.reward, first.metrics.logprob_diff) == (0.5, None)
    assert (first.metrics.error_rate, first.metrics.cost_dollars) == (0.25, 12.5)
    assert first.metrics.prefix_cache_hit_rate == 0.75
    second = news(first, in_flight=4).metrics
    assert second is not None
    assert (second.reward, second.trials_in_flight) == (0.5, 4)


def test_checkpoints_are_those_that_were_told_last() -> None:
    first = CheckpointStatus(last=Checkpoint(step=5, uri="/seatrial/storage/run/stages/train/checkpoints/000005"))
    status = news(stage="train", checkpoints=first)
    assert status.checkpoints == first
    assert news(status, stage="after").checkpoints == first
    best = Checkpoint(step=10, uri="/seatrial/storage/run/stages/train/checkpoints/000010", validation_pass_rate=0.5)
    second = CheckpointStatus(last=best, best=best)
    assert news(status, stage="train", checkpoints=second).checkpoints == second


def test_failures_are_forgotten_after_a_finished_stage_or_a_checkpoint_interval() -> None:
    lost = RLRunStatus(current=CURRENT, failures=3)
    assert news(lost, stage="preflight", step=100).failures == 3
    assert news(lost, stages=[stage("preflight", seconds=1, result=StageResult.PASSED)]).failures == 0
    going = news(lost, stage="train", step=10)
    assert going.failures == 3
    assert news(going, stage="train", step=10 + SPEC.checkpoint.every_steps - 1).failures == 3
    assert news(going, stage="train", step=10 + SPEC.checkpoint.every_steps).failures == 0


def test_a_driver_that_tells_more_than_fits_is_cut() -> None:
    gates = [GateResult(name="g", value=1, bound=1, direction="AtMost")] * 40
    (row,) = news(stages=[stage("preflight", seconds=1, message="x" * 5000, gates=gates)], ended=ExitCode.PASSED).stages
    assert (len(row.message), len(row.gates)) == (1024, 32)
