"""The playbook: segments, what comes next, and how a run ends."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.playbook import (
    ExitCode,
    Finished,
    Nodes,
    RunStage,
    Stopped,
    exit_code,
    next_step,
    nodes_of,
    segments_of,
)
from seatrial_api.spec.stages import StageSpec
from seatrial_api.stage_report import GateResult, StageReport, StageResult

BODIES: dict[str, dict[str, Any]] = {
    "preflight": {},
    "evaluate": {"checkpoint": "Initial"},
    "overfit": {},
    "ablate": {"arms": [{"name": "a", "patch": {}}, {"name": "b", "patch": {}}]},
    "train": {"steps": 5},
}


def stage(name: str, kind: str) -> StageSpec:
    return StageSpec.model_validate({"name": name, kind: BODIES[kind]})


def report(name: str, result: StageResult, checkpoint: str | None = None) -> StageReport:
    return StageReport(stage=name, kind="Train", result=result, checkpoint=checkpoint)


PLAYBOOK = [
    stage("preflight", "preflight"),
    stage("before", "evaluate"),
    stage("overfit", "overfit"),
    stage("train", "train"),
    stage("after", "evaluate"),
]
PASSED = {item.name: report(item.name, StageResult.PASSED) for item in PLAYBOOK}


def test_consecutive_stages_on_equal_nodes_share_a_segment() -> None:
    segments = segments_of(PLAYBOOK)
    assert [(segment.nodes, segment.stages) for segment in segments] == [
        (Nodes.ROLLOUT, ("preflight", "before")),
        (Nodes.ALL, ("overfit", "train")),
        (Nodes.ROLLOUT, ("after",)),
    ]


def test_holding_the_run_makes_one_segment_of_the_most_nodes() -> None:
    (segment,) = segments_of(PLAYBOOK, "Run")
    assert segment.nodes is Nodes.ALL
    assert segment.stages == tuple(item.name for item in PLAYBOOK)


@given(st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=8))
def test_segments_keep_order_lose_no_stage_and_alternate(kinds: list[str]) -> None:
    stages = [stage(f"s{index}", kind) for index, kind in enumerate(kinds)]
    segments = segments_of(stages)
    assert [name for segment in segments for name in segment.stages] == [item.name for item in stages]
    assert [segment.index for segment in segments] == list(range(len(segments)))
    assert all(one.nodes is not two.nodes for one, two in pairwise(segments))
    nodes = {item.name: nodes_of(item) for item in stages}
    assert all(nodes[name] is segment.nodes for segment in segments for name in segment.stages)


def test_a_new_run_begins_with_its_first_stage() -> None:
    step = next_step(PLAYBOOK, {})
    assert isinstance(step, RunStage)
    assert (step.stage.name, step.segment.index, step.from_checkpoint) == ("preflight", 0, None)


def test_the_stage_behind_those_that_passed_is_next() -> None:
    step = next_step(PLAYBOOK, {name: PASSED[name] for name in ("preflight", "before")})
    assert isinstance(step, RunStage)
    assert (step.stage.name, step.segment.index) == ("overfit", 1)


def test_a_run_whose_stages_all_passed_is_finished() -> None:
    assert next_step(PLAYBOOK, PASSED) == Finished()
    assert exit_code(Finished()) is ExitCode.PASSED


@pytest.mark.parametrize(
    ("result", "reason", "code"),
    [
        (StageResult.GATE_FAILED, "GateFailed", ExitCode.STOPPED),
        (StageResult.GUARDED, "Guarded", ExitCode.STOPPED),
        (StageResult.FAILED, "Failed", ExitCode.FAILED),
        (StageResult.INTERRUPTED, "Interrupted", ExitCode.INTERRUPTED),
    ],
)
def test_a_stage_that_did_not_pass_stops_the_run(result: StageResult, reason: str, code: ExitCode) -> None:
    step = next_step(PLAYBOOK, {**PASSED, "train": report("train", result, "step-5")})
    assert isinstance(step, Stopped)
    assert (step.stage, step.reason) == ("train", reason)
    assert step.message
    assert exit_code(step) is code


@pytest.mark.parametrize(
    ("result", "checkpoint", "start"),
    [
        (StageResult.GUARDED, "step-5", "step-5"),
        (StageResult.INTERRUPTED, "step-5", "step-5"),
        (StageResult.FAILED, "step-5", "step-5"),
        (StageResult.FAILED, None, None),
        (StageResult.GATE_FAILED, "step-5", None),
    ],
)
def test_resuming_goes_on_from_the_checkpoint_and_a_failed_gate_begins_anew(
    result: StageResult, checkpoint: str | None, start: str | None
) -> None:
    reports = {"preflight": report("preflight", result, checkpoint)}
    step = next_step(PLAYBOOK, reports, resume=True)
    assert isinstance(step, RunStage)
    assert (step.stage.name, step.from_checkpoint) == ("preflight", start)


@given(st.dictionaries(st.sampled_from([item.name for item in PLAYBOOK]), st.sampled_from(StageResult)))
def test_nothing_behind_a_stage_that_did_not_pass_ever_runs(results: dict[str, StageResult]) -> None:
    step = next_step(PLAYBOOK, {name: report(name, result) for name, result in results.items()})
    if isinstance(step, RunStage):
        before = PLAYBOOK[: PLAYBOOK.index(step.stage)]
        assert all(results.get(item.name) is StageResult.PASSED for item in before)
        assert step.stage.name not in results


def test_a_failed_gate_is_named_when_the_report_says_nothing() -> None:
    gate = GateResult(name="non-model error rate", value=0.5, bound=0.01, direction="AtMost")
    failed = StageReport(stage="preflight", kind="Preflight", result=StageResult.GATE_FAILED, gates=[gate])
    step = next_step(PLAYBOOK, {"preflight": failed})
    assert isinstance(step, Stopped)
    assert "non-model error rate" in step.message


def test_kinds_have_the_names_of_the_design() -> None:
    assert [stage("s", kind).kind for kind in BODIES] == ["Preflight", "Evaluate", "Overfit", "Ablate", "Train"]
