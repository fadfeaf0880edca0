"""What becomes of a world's inspection, table by table."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from seatrial_api.inspection_request import INSPECTION_VARIABLE, InspectionRequest
from seatrial_api.world_image import Inspection, InspectionResult, InspectionStatus, WorldImage, WorldImageStatus
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.inspection import inspected_revision, inspection_job, inspection_job_name
from seatrial_operator.plan.inspection import (
    InspectionJob,
    InspectionPlan,
    JobState,
    plan_inspection,
    read_inspection_job,
)
from seatrial_operator.plan.worlds import Found, WorldPlan, resolve, world_status
from tests.worlds import DIGEST, OTHER, world

ASKED: dict[str, Any] = {"tasks": {"source": {"pvc": {"claim": "tasks", "path": "office"}}}}
PASSED = InspectionResult(passed=True, tasks=45, trials=500)
FAILED = InspectionResult(
    passed=False, tasks=45, trials=500, faults={"SolutionFails": 2}, first=["SolutionFails a: its own was graded 0"]
)


def inspected(status: InspectionStatus | None = None, **spec: Any) -> WorldImage:
    """A world that is to be inspected, and what was found before."""
    return world(WorldImageStatus(inspection=status), **{"inspection": ASKED, **spec})


REVISION = inspected_revision("acme", inspected().spec, DIGEST)


def held(result: InspectionResult, revision: str = REVISION) -> InspectionStatus:
    """What the status holds of an inspection."""
    return InspectionStatus(**dict(result), digest=DIGEST, revision=revision, report="report.md")


def job(
    state: JobState, message: str = "", result: InspectionResult | None = None, *, of: str = REVISION
) -> InspectionJob:
    """A Job that inspects a revision."""
    return InspectionJob(inspection_job_name("acme", of), f"uid-{of}", of, state, message, result)


def plan(one: WorldImage, *jobs: InspectionJob, digest: str | None = DIGEST) -> InspectionPlan:
    return plan_inspection(one, digest, jobs, OperatorConfig())


def told(planned: InspectionPlan) -> str:
    """Status and reason of the condition; empty without one."""
    return f"{planned.statement.status} {planned.statement.reason}" if planned.statement else ""


@pytest.mark.parametrize(
    ("status", "jobs", "starts", "removes", "said"),
    [
        (None, [], True, 0, "False Inspecting"),
        (None, [job(JobState.RUNNING)], False, 0, "False Inspecting"),
        (None, [job(JobState.PULL_FAILED, "ErrImagePull")], False, 0, "False PullFailed"),
        (None, [job(JobState.FAILED, "no tasks")], False, 0, "False JobFailed"),
        (None, [job(JobState.DONE, result=PASSED)], False, 0, "True InspectionPassed"),
        (None, [job(JobState.DONE, result=FAILED)], False, 0, "False InspectionFailed"),
        (None, [job(JobState.LOST)], False, 1, "False Inspecting"),
        (None, [job(JobState.DONE, result=PASSED, of="former")], True, 1, "False Inspecting"),
        (held(PASSED), [], False, 0, "True InspectionPassed"),
        (held(PASSED), [job(JobState.LOST)], False, 0, "True InspectionPassed"),
        (held(FAILED), [job(JobState.LOST)], False, 0, "False InspectionFailed"),
        (held(FAILED), [], True, 0, "False Inspecting"),
        (held(PASSED, "former"), [], True, 0, "False Inspecting"),
    ],
)
def test_a_revision_is_inspected_once_and_again_when_its_job_is_deleted_after_a_failure(
    status: InspectionStatus | None, jobs: list[InspectionJob], starts: bool, removes: int, said: str
) -> None:
    planned = plan(inspected(status), *jobs)
    assert (planned.start, len(planned.remove), told(planned)) == (starts, removes, said)


def test_nothing_begins_before_the_digest_is_known_and_what_was_found_stays() -> None:
    planned = plan(inspected(held(PASSED)), digest=None)
    assert (planned.start, told(planned), planned.status) == (False, "False Inspecting", held(PASSED))


def test_a_world_that_asks_for_nothing_keeps_no_job() -> None:
    planned = plan(inspected(held(PASSED), inspection=None), job(JobState.RUNNING))
    assert (len(planned.remove), told(planned), planned.status) == (1, "", None)


@pytest.mark.parametrize(
    ("changes", "digest", "is_other"),
    [
        ({}, OTHER, True),
        ({"inspection": {**ASKED, "repeats": 5}}, DIGEST, True),
        ({"mcp": {"kind": "Archipelago"}}, DIGEST, True),
        ({"prePull": {}}, DIGEST, False),
        ({"pullSecret": "keys"}, DIGEST, False),
    ],
)
def test_what_is_inspected_tells_whether_it_is_inspected_anew(
    changes: dict[str, Any], digest: str, is_other: bool
) -> None:
    assert (inspected_revision("acme", inspected(**changes).spec, digest) != REVISION) is is_other


def test_a_failed_inspection_names_the_faults_the_report_and_the_way_to_try_again() -> None:
    planned = plan(inspected(), job(JobState.DONE, result=FAILED))
    name = inspection_job_name("acme", REVISION)
    assert planned.statement is not None
    assert planned.statement.message == (
        "45 tasks in 500 trials: SolutionFails 2. SolutionFails a: its own was graded 0. "
        f"Report: kubectl -n team logs job/{name}. After mending tasks in place: kubectl -n team delete job {name}"
    )
    assert planned.status is not None
    assert (planned.status.digest, planned.status.faults) == (DIGEST, {"SolutionFails": 2})


def test_a_world_is_ready_only_once_it_passed() -> None:
    wanted = inspected()
    now, resolution = datetime(2026, 11, 30, tzinfo=UTC), resolve(wanted, Found(DIGEST))
    for result, said in ((FAILED, "False Inspected"), (PASSED, "True Ready")):
        planned = plan(wanted, job(JobState.DONE, result=result))
        status = world_status(wanted, 1, WorldPlan(resolution, inspection=planned), now)
        assert f"{status.conditions[-1].status} {status.conditions[-1].reason}" == said
        assert status.inspection == planned.status


def item(*ended: str) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "message": f"{kind} it is"} for kind in ended]
    annotations = {"seatrial.dev/inspected-revision": REVISION}
    return {"metadata": {"name": "j", "uid": "u", "annotations": annotations}, "status": {"conditions": conditions}}


def pod(at: str = "2026-11-30T12:00:00Z", **state: Any) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": at}, "status": {"containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("ended", "pods", "state", "message"),
    [
        ([], [], JobState.RUNNING, ""),
        ([], [pod(running={})], JobState.RUNNING, ""),
        ([], [pod(waiting={"reason": "ContainerCreating"})], JobState.RUNNING, "ContainerCreating"),
        ([], [pod(waiting={"reason": "ErrImagePull", "message": "no"})], JobState.PULL_FAILED, "ErrImagePull: no"),
        (["Complete"], [pod(terminated={"message": PASSED.model_dump_json(by_alias=True)})], JobState.DONE, ""),
        (["Complete"], [], JobState.LOST, ""),
        (["Complete"], [pod(terminated={"message": "gibberish"})], JobState.FAILED, "its result cannot be read"),
        (["FailureTarget", "Failed"], [], JobState.FAILED, "Failed it is"),
        (["Failed"], [pod(terminated={"reason": "OOMKilled"})], JobState.FAILED, "Failed it is (OOMKilled)"),
        (
            ["Failed"],
            [pod("2026-11-30T12:01:00Z", terminated={"message": "new"}), pod(terminated={"message": "old"})],
            JobState.FAILED,
            "new",
        ),
    ],
)
def test_a_job_is_read_with_the_last_word_of_its_newest_pod(
    ended: list[str], pods: list[dict[str, Any]], state: JobState, message: str
) -> None:
    seen = read_inspection_job(item(*ended), pods)
    assert (seen.revision, seen.state, seen.message) == (REVISION, state, message)
    assert seen.result == (PASSED if state is JobState.DONE else None)


def test_the_job_reaches_the_broker_reads_the_tasks_and_leaves_its_report_in_the_default_storage() -> None:
    asked = Inspection.model_validate(ASKED)
    config = OperatorConfig.model_validate(
        {"storage": {"pvc": {"claim": "runs", "path": "a"}}, "sandboxes": {"address": "broker:8092"}}
    )
    made = inspection_job(inspected(), "uid", asked, REVISION, config)["spec"]["template"]
    [container] = made["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    request = InspectionRequest.model_validate(json.loads(env[INSPECTION_VARIABLE]))
    assert (request.inspection, str(request.report_dir)) == (asked, f"/seatrial/storage/a/inspections/acme-{REVISION}")
    assert env["SEATRIAL_BROKER"] == "broker:8092"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/seatrial/pvc/tasks", "/seatrial/storage", "/var/run/secrets/seatrial.dev/broker"} <= mounts
    assert made["metadata"]["labels"]["seatrial.dev/role"] == "agents"
