import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.reporting.comparison import Change, compare
from seatrial_trainer.reporting.symptoms import Symptom
from tests.trajectories import make_trajectory


def tries(task: str, *rewards: float, failed_calls: int = 0) -> list[Trajectory]:
    return [
        make_trajectory(f"{task}/{number}", task=task, reward=reward, failed_calls=failed_calls)
        for number, reward in enumerate(rewards)
    ]


def test_results_are_compared_task_by_task_over_the_tasks_that_both_tried() -> None:
    before = [*tries("a", 0.0, 0.0), *tries("b", 1.0, 0.0), *tries("only-before", 1.0)]
    after = [*tries("a", 1.0, 0.0), *tries("b", 1.0, 1.0), *tries("only-after", 0.0)]
    gain = compare(before, after).gain
    assert gain is not None
    assert (gain.mean, gain.count) == (pytest.approx(0.5), 2)


def test_without_a_shared_task_there_is_no_gain() -> None:
    assert compare(tries("a", 1.0), tries("b", 1.0)).gain is None
    assert compare([], []).outcomes == []


def test_shares_of_outcomes_and_of_failed_calls_stand_side_by_side() -> None:
    before = [*tries("a", 1.0), make_trajectory("b/0", outcome=Outcome.SANDBOX_FAILED)]
    found = compare(before, tries("a", 1.0, 1.0, failed_calls=1))
    assert found.outcomes == [Change("SandboxFailed", 0.5, None), Change("Completed", 0.5, 1.0)]
    assert found.tools == [Change("sheets_lookup", 0.0, 0.5)]


def test_what_looks_broken_now_is_told_from_what_was_mended() -> None:
    silent = tries("a", 1.0)[0]
    (call,) = silent.turns[0].tool_calls
    calls = [call.model_copy(update={"result": ""})] * 3
    broken = silent.model_copy(update={"turns": [silent.turns[0].model_copy(update={"tool_calls": calls})]})
    appeared = compare(tries("a", 1.0), [broken])
    assert [(one.symptom, one.tool) for one in appeared.appeared] == [(Symptom.ANSWERS_NOTHING, "sheets_lookup")]
    assert appeared.gone == []
    assert [one.tool for one in compare([broken], tries("a", 1.0)).gone] == ["sheets_lookup"]
    assert compare([broken], [broken]).appeared == []
