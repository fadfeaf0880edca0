import json

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_rollout.inspection.faults import Fault, FaultKind, InspectionReport
from seatrial_rollout.inspection.tool_faults import LISTED, NO_ANSWER, find_tool_faults, wrong_arguments
from tests.trajectories import make_trajectory

TRACEBACK = "Traceback (most recent call last):\n  KeyError"
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "row": {"type": "integer"}, "value": {"anyOf": []}},
    "required": ["path"],
}


def probed(arguments: str, result: str, *, is_error: bool = False) -> Trajectory:
    call = ToolCall(
        server="docs", tool="read", arguments=arguments, result=result, is_error=is_error, duration_seconds=60.0
    )
    trajectory = make_trajectory()
    return trajectory.model_copy(update={"turns": [trajectory.turns[0].model_copy(update={"tool_calls": [call]})]})


def test_a_tool_is_called_with_nothing_and_with_values_of_wrong_types() -> None:
    assert list(wrong_arguments(SCHEMA)) == [{}, {"path": [], "row": "many"}]
    assert list(wrong_arguments({"type": "object", "properties": {}})) == []


@pytest.mark.parametrize(
    ("arguments", "result", "is_error", "told"),
    [
        (
            "{}",
            "Traceback (most recent call last):\n  KeyError",
            True,
            "docs_read called with {} answers with a traceback",
        ),
        ("{}", "", True, "docs_read called with {} fails without a word"),
        ("{}", "None", False, "docs_read called with {} says that it worked: 'None'"),
        ("{}", NO_ANSWER, False, "docs_read called with {} does not answer within 60 s"),
        (LISTED, json.dumps({"description": " ", "schema": SCHEMA}), False, "docs_read has no description"),
        (
            LISTED,
            json.dumps({"description": "Reads.", "schema": {"properties": {"path": {}}}}),
            False,
            "docs_read does not say of which type path is",
        ),
    ],
)
def test_a_tool_that_does_not_teach_is_named(arguments: str, result: str, is_error: bool, told: str) -> None:
    (fault,) = find_tool_faults("task", probed(arguments, result, is_error=is_error))
    assert (fault.kind, fault.detail) == (FaultKind.TOOL, told)


def test_an_error_that_teaches_is_no_fault() -> None:
    assert list(find_tool_faults("task", probed("{}", "path is missing", is_error=True))) == []


def test_tools_that_were_never_reached_are_untried() -> None:
    unreached = make_trajectory(outcome=Outcome.TOOL_SERVER_FAILED).model_copy(update={"turns": []})
    (fault,) = find_tool_faults("task", unreached)
    assert fault.kind is FaultKind.UNTRIED


def test_a_report_groups_by_kind_and_lets_some_tasks_be_flaky() -> None:
    flaky = Fault(FaultKind.FLAKY, "task-b", "its own solution was graded 1, 0")
    report = InspectionReport("office", tasks=10, trials=90, seconds=12.0, faults=[flaky])
    assert report.passes(max_flakiness=0.1)
    assert not report.passes(max_flakiness=0.05)
    assert "## Flaky: 1 of 10 tasks\n\n- **task-b**: its own solution was graded 1, 0\n" in report.text()
    leaked = InspectionReport("office", 10, 90, 12.0, [Fault(FaultKind.LEAKED, "task-a", "x")])
    assert not leaked.passes(max_flakiness=1.0)
    assert "Nothing was found." in InspectionReport("office", 10, 90, 12.0, []).text()
