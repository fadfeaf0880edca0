"""Between attempts: whether the run is over, waits, or starts the next attempt."""

from typing import assert_never

from seatrial_api.conditions import RunCondition
from seatrial_api.playbook import Finished, RunStage, Segment, Stopped
from seatrial_api.stage_report import StageResult
from seatrial_api.status import AttemptStatus, StageStatus
from seatrial_operator.plan.actions import ApplyPool, CreateJob, DeleteAttempt, DeleteRun, EnsureSecret
from seatrial_operator.plan.digests import digest, live_settings
from seatrial_operator.plan.draft import Draft
from seatrial_operator.plan.observed import RESUME_ANNOTATION
from seatrial_operator.plan.playbook import step_of

_REFUSED_LOOK_SECONDS = 30.0
_GONE_LOOK_SECONDS = 10.0


def go_on(draft: Draft) -> None:
    """Do what comes next."""
    resume = _is_resume_asked(draft)
    if _is_over(draft) and not resume:
        _rest(draft)
        return
    if not draft.is_true(RunCondition.ACCEPTED):
        _delete_others(draft, keep=None)
        return
    match step_of(draft, resume=resume):
        case Finished():
            draft.state(RunCondition.COMPLETE, "True", "AllStagesPassed", "every stage passed")
            _rest(draft)
        case Stopped() as stopped:
            _stop(draft, stopped)
            _rest(draft)
        case RunStage(segment=segment):
            _run(draft, segment, resume=resume)
        case step:
            assert_never(step)


def _is_over(draft: Draft) -> bool:
    """Whether nothing happens any more unless a person asks for it."""
    ends = (RunCondition.COMPLETE, RunCondition.FAILED, RunCondition.GUARDED)
    return any(draft.is_true(end) for end in ends)


def _is_resume_asked(draft: Draft) -> bool:
    """Whether a person asked for the run to go on: by the annotation, or by other guards after one has fired."""
    run, status = draft.situation.run, draft.status
    if draft.is_true(RunCondition.COMPLETE):
        return False
    asked = run.run.metadata.annotations.get(RESUME_ANNOTATION)
    has_other_guards = draft.is_true(RunCondition.GUARDED) and digest(run.spec.guards) != status.guards
    return has_other_guards or (asked is not None and asked != status.resumed_for)


def _stop(draft: Draft, stopped: Stopped) -> None:
    message = f"stage {stopped.stage}: {stopped.message}"
    if stopped.reason == "Guarded":
        draft.state(RunCondition.GUARDED, "True", "GuardFired", message)
    else:
        draft.state(RunCondition.FAILED, "True", stopped.reason, message)


def _run(draft: Draft, segment: Segment, *, resume: bool) -> None:
    """Start the next attempt, unless there is a reason to wait."""
    situation, status = draft.situation, draft.status
    spec = situation.run.spec
    if spec.suspend:
        draft.state(RunCondition.SUSPENDED, "True", "UserRequest", "suspend is set; nodes are released")
        draft.drop(RunCondition.SCHEDULED, RunCondition.PROGRESSING)
        _delete_others(draft, keep=None)
        return
    is_unsuspended = draft.is_true(RunCondition.SUSPENDED)
    if status.failures > spec.backoff_limit and not resume:
        _give_up(draft)
        return
    attempt = status.attempt if segment.index == status.segment else 0
    is_gone = _delete_others(draft, keep=(segment.index, attempt))
    if status.retry_at is not None and not resume and not is_unsuspended and situation.now < status.retry_at:
        draft.look_at(status.retry_at)
        return
    if not is_gone:
        draft.state(RunCondition.SCHEDULED, "False", "Starting", "waits until the former attempt's pods are gone")
        draft.look_after(_GONE_LOOK_SECONDS)
        return
    if situation.seen.refused:
        draft.state(RunCondition.SCHEDULED, "False", "Refused", situation.seen.refused)
        draft.look_after(_REFUSED_LOOK_SECONDS)
        return
    _start(draft, segment, attempt, resume=resume)


def _give_up(draft: Draft) -> None:
    """Too many attempts ended early."""
    scheduled = draft.find(RunCondition.SCHEDULED)
    last = f"; of the last one: {scheduled.message}" if scheduled else ""
    bound = f"backoffLimit is {draft.situation.run.spec.backoff_limit}"
    message = f"{draft.status.failures} attempts in a row ended early without progress, and {bound}{last}"
    draft.state(RunCondition.FAILED, "True", "AttemptsExhausted", message)
    _rest(draft)


def _start(draft: Draft, segment: Segment, attempt: int, *, resume: bool) -> None:
    situation, status = draft.situation, draft.status
    resumes = resume or status.resumes
    settings = live_settings(situation.run.spec)
    is_made = situation.seen.job(segment.index, attempt) is not None
    if not is_made:
        draft.actions.append(CreateJob(segment, attempt))
    draft.actions += [EnsureSecret(segment, attempt, resumes), ApplyPool()]
    draft.update(
        segment=segment.index,
        attempt=attempt,
        current=AttemptStatus(started_at=situation.now, settings=None if is_made else digest(settings)),
        stages=[
            row if row.name not in segment.stages or row.result is StageResult.PASSED else _begun_again(row, attempt)
            for row in status.stages
        ],
        retry_at=None,
        failures=0 if resume else status.failures,
        resumes=resumes,
        resumed_for=situation.run.run.metadata.annotations.get(RESUME_ANNOTATION),
        guards=digest(settings.guards),
        progress=None,
    )
    for ended in (RunCondition.SUSPENDED, RunCondition.GUARDED, RunCondition.FAILED):
        if draft.is_true(ended):
            draft.state(ended, "False", "Resumed", f"went on with attempt {attempt} of segment {segment.index}")
    draft.state(RunCondition.SCHEDULED, "False", "Starting", "waits for its pods")
    draft.look_after(situation.timing.poll_seconds)


def _begun_again(row: StageStatus, attempt: int) -> StageStatus:
    return row.model_copy(update={"result": None, "finished_at": None, "message": "", "gates": [], "attempt": attempt})


def _rest(draft: Draft) -> None:
    """Nothing runs any more: nodes are released, and a finished run goes when its time is over."""
    draft.drop(RunCondition.SCHEDULED, RunCondition.PROGRESSING)
    _delete_others(draft, keep=None)
    ttl = draft.situation.run.spec.ttl_seconds_after_finished
    ends = [draft.find(kind) for kind in (RunCondition.COMPLETE, RunCondition.FAILED) if draft.is_true(kind)]
    if ttl is None or not ends or ends[0] is None:
        return
    if draft.has_passed(ends[0].last_transition_time, ttl):
        draft.removals.append(DeleteRun())


def _delete_others(draft: Draft, keep: tuple[int, int] | None) -> bool:
    """Delete what is left of all attempts but `keep`; whether nothing of them is left.

    Two drivers must never write to one run folder, so pods count as well as RayJobs. What a namesake left goes by
    itself, and is waited for.
    """
    seen = draft.situation.seen
    kept = None if keep is None else seen.job(*keep)
    kept = None if kept is not None and kept.is_deleting else kept
    others = [job for job in seen.jobs if job is not kept]
    pods = [pod for pod in seen.pods if kept is None or (pod.segment, pod.attempt) != keep]
    planned = {
        (action.segment, action.attempt)
        for action in (*draft.actions, *draft.removals)
        if isinstance(action, DeleteAttempt)
    }
    draft.removals += [
        DeleteAttempt(job.segment, job.attempt)
        for job in others
        if job.is_ours and not job.is_deleting and (job.segment, job.attempt) not in planned
    ]
    return not others and not pods and not planned
