import pytest

from seatrial_api.finding import Finding, FindingKind
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_trainer.reporting.failures import signature, summarize_findings, summarize_outcomes, summarize_tools
from seatrial_trainer.reporting.selection import Selection
from tests.trajectories import make_trajectory


def with_calls(*calls: tuple[str, str, bool, str]) -> Trajectory:
    trajectory = make_trajectory()
    made = [
        ToolCall(server=server, tool=tool, arguments="{}", result=result, is_error=is_error, duration_seconds=0.5)
        for server, tool, is_error, result in calls
    ]
    turn = trajectory.turns[0].model_copy(update={"tool_calls": made})
    return trajectory.model_copy(update={"turns": [turn]})


def test_errors_that_differ_in_names_and_numbers_are_one() -> None:
    first = "there is no column 'price' in row 17\nof 'a.csv'"
    second = "there is no column 'cost' in row 3 of \"b.csv\""
    assert signature(first) == signature(second)
    assert signature(first) != signature("there is no row 'price' in column 17 of 'a.csv'")


def test_the_tool_with_the_most_errors_comes_first_with_its_errors_grouped() -> None:
    trajectory = with_calls(
        ("sheets", "lookup", False, "7"),
        ("sheets", "lookup", True, "no row 'a'"),
        ("sheets", "lookup", True, "no row 'b'"),
        ("sheets", "lookup", True, "no file 'x'"),
        ("filesystem", "list_files", False, "a.csv"),
        ("", "made_up", True, "no such tool"),
    )
    lookup, made_up, listing = summarize_tools([trajectory])
    assert (lookup.name, lookup.calls, lookup.errors) == ("sheets_lookup", 4, 3)
    assert lookup.error_rate == pytest.approx(0.75)
    assert [(group.signature, group.count) for group in lookup.error_groups] == [("no row '…'", 2), ("no file '…'", 1)]
    assert made_up.name == "(no such tool)"
    assert listing.errors == 0


def test_infrastructure_outcomes_come_first_and_have_no_reward() -> None:
    trajectories = [
        make_trajectory("a/0", reward=1.0),
        make_trajectory("a/1", reward=0.0),
        make_trajectory("a/2", outcome=Outcome.SANDBOX_FAILED),
    ]
    failed, completed = summarize_outcomes(trajectories)
    assert (failed.outcome, failed.count, failed.mean_reward) == ("SandboxFailed", 1, None)
    assert (completed.outcome, completed.count, completed.mean_reward) == ("Completed", 2, 0.5)


def test_what_agents_did_comes_before_what_they_wrote() -> None:
    act = Finding(kind=FindingKind.LEFT_RUNNING, detail="2 processes of the agent were still there: sleep")
    files = [Finding(kind=FindingKind.EXECUTABLE, path=f"/workspace/run{index}") for index in range(3)]
    trajectories = [
        make_trajectory("a/0").model_copy(update={"findings": files}),
        make_trajectory("a/1").model_copy(update={"findings": [act, files[0]]}),
    ]
    left, programs = summarize_findings(trajectories)
    assert (left.kind, left.trials, left.count) == (FindingKind.LEFT_RUNNING, 1, 1)
    assert (programs.kind, programs.trials, programs.count) == (FindingKind.EXECUTABLE, 2, 4)
    assert left.details == (("# processes of the agent were still there: sleep", 1),)
    assert list(Selection(finding="LeftRunning").of(trajectories)) == trajectories[1:]


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Selection(), {"a/0", "b/0", "c/0"}),
        (Selection(task="b"), {"b/0"}),
        (Selection(outcome="Completed", max_reward=0.5), {"a/0"}),
        (Selection(min_reward=0.5), {"b/0"}),
        (Selection(infrastructure=True), {"c/0"}),
        (Selection(failed_tool_calls=True), {"b/0"}),
        (Selection(tool="sheets_lookup", domain="finance"), {"a/0", "b/0", "c/0"}),
        (Selection(tool="sheets_sum"), set()),
    ],
)
def test_a_selection_keeps_what_meets_every_condition(selection: Selection, chosen: set[str]) -> None:
    trajectories = [
        make_trajectory("a/0", task="ta", reward=0.2),
        make_trajectory("b/0", task="tb", reward=1.0, failed_calls=1),
        make_trajectory("c/0", task="tc", outcome=Outcome.ENGINE_FAILED),
    ]
    assert {trajectory.trial_id for trajectory in selection.of(trajectories)} == chosen
