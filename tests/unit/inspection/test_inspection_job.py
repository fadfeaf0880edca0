"""The Job that inspects a world, without a cluster."""

from pathlib import Path

import pytest

from seatrial_api.inspection_request import INSPECTION_VARIABLE, InspectionRequest
from seatrial_api.world_image import Inspection
from seatrial_rollout.inspection.__main__ import main
from seatrial_rollout.inspection.faults import Fault, FaultKind, InspectionReport
from seatrial_rollout.inspection.result import result_of

PLENTY = 100_000


def report(*faults: Fault) -> InspectionReport:
    return InspectionReport("office", 4, 48, 1.0, faults)


def test_the_gravest_faults_come_first_and_tasks_are_counted_by_kind() -> None:
    leaked, failed = Fault(FaultKind.LEAKED, "b", "shows it"), Fault(FaultKind.SOLUTION_FAILS, "a", "was graded 0")
    result = result_of(report(leaked, leaked, failed), 0.0, PLENTY)
    assert (result.passed, result.faults) == (False, {"SolutionFails": 1, "Leaked": 1})
    assert result.first == ["SolutionFails a: was graded 0", "Leaked b: shows it", "Leaked b: shows it"]


def test_a_result_keeps_to_the_room_there_is() -> None:
    faults = [Fault(FaultKind.TOOL, f"task-{number}", "\N{SNOWMAN}" * 1000) for number in range(5)]
    result = result_of(report(*faults), 0.0, 2048)
    assert len(result.model_dump_json(by_alias=True).encode()) <= 2048
    assert (len(result.first), result.faults) == (1, {"Tool": 5})


@pytest.mark.parametrize(("max_flakiness", "passed"), [(0.0, False), (0.25, True)])
def test_flaky_tasks_are_allowed_up_to_the_bound(max_flakiness: float, passed: bool) -> None:
    assert result_of(report(Fault(FaultKind.FLAKY, "a", "0, 1")), max_flakiness, PLENTY).passed is passed


def test_tasks_that_cannot_be_used_end_the_job_for_good_with_the_reason_as_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = InspectionRequest(
        world="office",
        inspection=Inspection.model_validate({"tasks": {"source": {"path": "none"}}}),
        trials=1,
        base_dir=tmp_path,
        result_file=tmp_path / "last-word",
    )
    monkeypatch.setenv(INSPECTION_VARIABLE, request.model_dump_json(by_alias=True))
    assert main() == 2
    assert f"source.path {tmp_path}/none does not exist" in request.result_file.read_text()
