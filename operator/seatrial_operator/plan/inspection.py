"""What is known of a world's inspection, and what to do about it.

A Job inspects one revision of a world: its image by digest, its tools and its tasks. What it found is kept in the
status, so that the Job may go; a revision that did not pass is inspected again once its Job is deleted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from seatrial_api.conditions import WorldCondition
from seatrial_api.world_image import InspectionResult, InspectionStatus, WorldImage
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.inspection import (
    REVISION_ANNOTATION,
    inspected_revision,
    inspection_job_name,
    report_place,
)
from seatrial_operator.plan.prepull import FAILED_PULLS
from seatrial_operator.plan.statements import Statement

_INSPECTED = WorldCondition.INSPECTED.value
_SHOWN_CHARS = 1000
"""Of a last word that is the end of a log."""


class JobState(StrEnum):
    """How far a Job is."""

    RUNNING = "Running"
    """It waits for its pod, or the pod works."""
    PULL_FAILED = "PullFailed"
    """The image that its pod runs cannot be pulled; the kubelet tries again."""
    DONE = "Done"
    """It ended and left a result."""
    LOST = "Lost"
    """It ended well, but its pod is gone, and its result with it."""
    FAILED = "Failed"
    """It ended without one."""


@dataclass(frozen=True, slots=True)
class InspectionJob:
    """A Job that inspects the world."""

    name: str
    uid: str
    revision: str
    state: JobState
    message: str = ""
    """Why it waits or failed."""
    result: InspectionResult | None = None


@dataclass(frozen=True, slots=True)
class InspectionPlan:
    """What to do, and how far it is."""

    revision: str = ""
    """What shall be inspected; empty if nothing, or not yet."""
    start: bool = False
    """Whether its Job is to be made."""
    remove: tuple[InspectionJob, ...] = ()
    """Jobs that are of no use any more."""
    statement: Statement | None = None
    """What the condition says; none if nothing is to be inspected."""
    status: InspectionStatus | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether something is to come of it without a change by anybody."""
        return self.statement is not None and self.statement.reason in {"Inspecting", "PullFailed"}


def plan_inspection(
    world: WorldImage, digest: str | None, jobs: Collection[InspectionJob], config: OperatorConfig
) -> InspectionPlan:
    """Decide what is inspected next.

    Args:
        world: The world; its status holds what was found before.
        digest: What its image is; none while it is not known.
        jobs: All Jobs that inspect it.
        config: The operator's settings.
    """
    former = world.status.inspection if world.status else None
    if world.spec.inspection is None:
        return InspectionPlan(remove=tuple(jobs))
    if digest is None:
        return InspectionPlan(statement=_inspecting("waiting for the image's digest"), status=former)
    revision = inspected_revision(world.metadata.name, world.spec, digest)
    job = next((one for one in jobs if one.revision == revision), None)
    held = former if former and former.revision == revision else None
    if job and job.result:
        report = report_place(world, revision, config)
        held = InspectionStatus(**dict(job.result), digest=digest, revision=revision, report=report)
    others = tuple(one for one in jobs if one is not job)
    if held and (held.passed or job):
        return InspectionPlan(revision, remove=others, statement=_verdict(world, held), status=held)
    if job is None:
        told = _inspecting(f"Job {inspection_job_name(world.metadata.name, revision)} begins")
        return InspectionPlan(revision, start=True, remove=others, statement=told, status=former)
    if job.state is JobState.LOST:
        told = _inspecting(f"the pod of Job {job.name} is gone and its result with it; it is made anew")
        return InspectionPlan(revision, remove=(*others, job), statement=told, status=former)
    return InspectionPlan(revision, remove=others, statement=_progress(world, job), status=former)


def refused(plan: InspectionPlan, why: str) -> InspectionPlan:
    """The plan when its Job could not be made."""
    told = f"the Job that inspects cannot be made: {why}"
    return replace(plan, statement=Statement(_INSPECTED, "False", "JobFailed", told))


def read_inspection_job(item: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> InspectionJob:
    """A Job with what its pods say.

    Args:
        item: The Job.
        pods: Its pods.
    """
    metadata = item["metadata"]
    revision = (metadata.get("annotations") or {}).get(REVISION_ANNOTATION, "")
    newest = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)
    ended = {one["type"]: one for one in (item.get("status") or {}).get("conditions") or [] if one["status"] == "True"}
    state, message, result = _state(ended, newest)
    return InspectionJob(metadata["name"], metadata["uid"], revision, state, message, result)


def _state(
    ended: Mapping[str, Mapping[str, Any]], pod: Mapping[str, Any] | None
) -> tuple[JobState, str, InspectionResult | None]:
    container = _container_state(pod)
    last_word = container.get("terminated", {}).get("message", "").strip()
    if "Complete" in ended:
        try:
            return JobState.DONE, "", InspectionResult.model_validate_json(last_word)
        except ValidationError:
            return (JobState.FAILED, "its result cannot be read", None) if last_word else (JobState.LOST, "", None)
    if "Failed" in ended:
        return JobState.FAILED, _failure(last_word or ended["Failed"].get("message", ""), container), None
    waiting = container.get("waiting", {})
    told = ": ".join(part for part in (waiting.get("reason"), waiting.get("message")) if part)
    if waiting.get("reason") in FAILED_PULLS:
        return JobState.PULL_FAILED, told, None
    return JobState.RUNNING, told or _unscheduled(pod), None


def _failure(told: str, container: Mapping[str, Any]) -> str:
    """Why a Job failed in one line: the end of what was told, and the kubelet's reason if it says more than that."""
    reason = container.get("terminated", {}).get("reason", "Error")
    line = " ".join(told.split())[-_SHOWN_CHARS:]
    return line if reason in {"Error", "Completed"} else f"{line} ({reason})"


def _container_state(pod: Mapping[str, Any] | None) -> Mapping[str, Any]:
    containers = ((pod or {}).get("status") or {}).get("containerStatuses") or [{}]
    state: Mapping[str, Any] = containers[0].get("state") or {}
    return state


def _unscheduled(pod: Mapping[str, Any] | None) -> str:
    conditions = ((pod or {}).get("status") or {}).get("conditions") or []
    waits = (one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False")
    return "".join(one.get("message", "") for one in waits)


def _inspecting(message: str) -> Statement:
    return Statement(_INSPECTED, "False", "Inspecting", message)


def _progress(world: WorldImage, job: InspectionJob) -> Statement:
    match job.state:
        case JobState.PULL_FAILED:
            return Statement(_INSPECTED, "False", "PullFailed", f"Job {job.name} cannot begin: {job.message}")
        case JobState.FAILED:
            told = f"Job {job.name} failed: {job.message}; mend that, then try again: {_again(world, job.name)}"
            return Statement(_INSPECTED, "False", "JobFailed", told)
        case _:
            waits = f" waits: {job.message}" if job.message else " is at work"
            return _inspecting(f"Job {job.name}{waits}")


def _verdict(world: WorldImage, found: InspectionStatus) -> Statement:
    tried = f"{found.tasks} tasks in {found.trials} trials"
    counts = ", ".join(f"{kind} {count}" for kind, count in found.faults.items())
    if found.passed:
        told = f"{counts}, which maxFlakiness allows" if counts else "nothing was found"
        return Statement(_INSPECTED, "True", "InspectionPassed", f"{tried}: {told}; report: {found.report}")
    again = _again(world, inspection_job_name(world.metadata.name, found.revision))
    first = "; ".join(found.first)
    message = f"{tried}: {counts}. {first}. Report: {found.report}. After mending tasks in place: {again}"
    return Statement(_INSPECTED, "False", "InspectionFailed", message)


def _again(world: WorldImage, job: str) -> str:
    """The command by which a person has a world inspected again."""
    return f"kubectl -n {world.metadata.namespace or 'default'} delete job {job}"
