"""An attempt that holds nodes: whether it goes on, and what its driver is told."""

from datetime import timedelta
from typing import assert_never

from seatrial_api.conditions import RunCondition
from seatrial_api.playbook import ExitCode, RunStage
from seatrial_api.progress import Progress
from seatrial_api.status import Endpoints, RLRunStatus
from seatrial_operator.plan.actions import DeleteAttempt, EnsureSecret, PutSettings, StopDriver
from seatrial_operator.plan.digests import changed_stages, digest, live_settings
from seatrial_operator.plan.draft import Draft
from seatrial_operator.plan.news import with_news
from seatrial_operator.plan.observed import JOB_OVER, RESUME_ANNOTATION, JobSeen, PodSeen, Silent
from seatrial_operator.plan.playbook import segment_at, step_of

_LONGEST_POLL_SECONDS = 60.0
"""A driver that does not answer is asked less and less often, so that many of them do not hold up the others."""


def watch(draft: Draft) -> None:
    """Look after the current attempt; it may end here."""
    situation, status = draft.situation, draft.status
    job = situation.seen.job(status.segment, status.attempt)
    told = situation.seen.driver if isinstance(situation.seen.driver, Progress) else None
    draft.update(resumed_for=situation.run.run.metadata.annotations.get(RESUME_ANNOTATION))
    if told is not None:
        draft.update(**_changed(draft, told))
    if told is not None and told.ended is not None:
        _ended(draft, told, told.ended, job)
    elif (loss := _loss(draft, job)) is not None:
        _lose(draft, loss)
    elif job is not None:
        _look_after(draft, job, told)


def release(draft: Draft) -> None:
    """End the current attempt without blame: a person asked for it, or its work is done."""
    status = draft.status
    is_seen = draft.situation.seen.job(status.segment, status.attempt) is not None
    # A Secret whose RayJob is gone is found by nobody: it goes before the status forgets it.
    steps = draft.removals if is_seen else draft.actions
    steps.append(DeleteAttempt(status.segment, status.attempt))
    draft.update(current=None, attempt=status.attempt + 1, **_without_nodes(status))
    draft.drop(RunCondition.SCHEDULED, RunCondition.PROGRESSING)


def _without_nodes(status: RLRunStatus) -> dict[str, object]:
    """What is no longer so when the nodes are released: the addresses of the cluster, and trials in flight."""
    links, figures = status.endpoints, status.metrics
    return {
        "endpoints": links and Endpoints(report=links.report),
        "metrics": figures and figures.model_copy(update={"trials_in_flight": 0}),
    }


def _changed(draft: Draft, told: Progress) -> dict[str, object]:
    news = with_news(draft.status, told, draft.situation.run.spec, draft.situation.now)
    return {name: getattr(news, name) for name in type(news).model_fields}


def _ended(draft: Draft, told: Progress, end: ExitCode, job: JobSeen | None) -> None:
    """The driver is done and said how."""
    message = told.message
    was_asked = draft.status.current is not None and draft.status.current.stopping_since is not None
    match end:
        case ExitCode.PASSED | ExitCode.STOPPED:
            step = step_of(draft)
            if isinstance(step, RunStage) and job is not None and f"{step.stage.name}=" in job.stages and not was_asked:
                _lose(draft, f"the driver ended before stage {step.stage.name} did")
                return
            release(draft)
            draft.update(failures=0, resumes=False)
        case ExitCode.INTERRUPTED if was_asked:
            release(draft)
        case ExitCode.INTERRUPTED:
            _lose(
                draft, "the driver was told to stop, and not by the operator: its node was drained, or its pod deleted"
            )
        case ExitCode.FAILED if not any(stage.needs_change for stage in told.stages):
            _lose(draft, message or "the driver failed")
        case ExitCode.FAILED | ExitCode.INVALID:
            release(draft)
            draft.state(RunCondition.FAILED, "True", "StageFailed", message or "the driver cannot use its input")
        case _:
            assert_never(end)


def _lose(draft: Draft, why: str) -> None:
    """End the current attempt early; the next one goes on from the checkpoint after a wait."""
    current = draft.status.current
    if current is not None and current.stopping_since is not None:
        release(draft)
        return
    timing, failures = draft.situation.timing, draft.status.failures + 1
    wait = min(timing.max_backoff_seconds, timing.first_backoff_seconds * 2.0 ** min(failures - 1, 16))
    release(draft)
    draft.update(failures=failures, retry_at=draft.situation.now + timedelta(seconds=wait))
    bound = draft.situation.run.spec.backoff_limit
    follows = f"attempt {draft.status.attempt} follows in {wait:.0f} s" if failures <= bound else "no attempt is left"
    draft.state(RunCondition.SCHEDULED, "False", "NodesLost", f"{why}; {follows}")


def _loss(draft: Draft, job: JobSeen | None) -> str | None:
    """Why the attempt cannot go on; none if it can."""
    if job is None or job.is_deleting:
        return "its RayJob was deleted"
    if job.state in JOB_OVER:
        return f"its RayJob ended before its driver told how: {job.message or job.state}"
    if job.state == "Running" and not job.is_suspended:
        return _head_loss(draft, job) or _silence(draft)
    return None


def _head_loss(draft: Draft, job: JobSeen) -> str | None:
    current, head = draft.status.current, draft.situation.seen.head(job)
    if current is None or current.head is None or current.cluster != job.cluster:
        return None
    if head is None:
        return "the pod of its driver is gone"
    if head.uid != current.head:
        return f"the pod of its driver was replaced by {head.name}"
    return (
        f"the pod of its driver ended: {head.name} is {head.phase}" if head.phase in {"Failed", "Succeeded"} else None
    )


def _silence(draft: Draft) -> str | None:
    silent, bound = draft.situation.seen.driver, draft.situation.timing.silence_seconds
    if not isinstance(silent, Silent):
        return None
    unreachable = draft.find(RunCondition.PROGRESSING)
    is_told = unreachable is not None and unreachable.status == "False"
    if silent.seconds >= bound or (
        is_told and unreachable and draft.has_passed(unreachable.last_transition_time, bound)
    ):
        return f"its driver has not answered for {bound:.0f} s: {silent.reason}"
    return None


def _look_after(draft: Draft, job: JobSeen, told: Progress | None) -> None:
    status = draft.status
    segment = segment_at(draft, status.segment)
    if segment is not None and not draft.situation.seen.has_secret:
        draft.actions.append(EnsureSecret(segment, status.attempt, status.resumes))
    _tell_where_it_stands(draft, job, told)
    _tell_settings(draft, told)
    _stop_if_asked(draft, job, told)
    silent = draft.situation.seen.driver
    patience = min(_LONGEST_POLL_SECONDS, silent.seconds / 4) if isinstance(silent, Silent) else 0.0
    draft.look_after(max(draft.situation.timing.poll_seconds, patience))


def _tell_where_it_stands(draft: Draft, job: JobSeen, told: Progress | None) -> None:
    """State `Scheduled` and `Progressing`, and remember the pod of a driver that runs."""
    if job.is_suspended or job.state in {"Suspended", "Suspending"}:
        draft.update_current(cluster=None, head=None)
        draft.drop(RunCondition.PROGRESSING)
        draft.state(RunCondition.SCHEDULED, "False", "Queued", "waits for its queue to admit it")
        return
    if told is None and job.state != "Running":
        reason, message = _starting(draft, job)
        draft.state(RunCondition.SCHEDULED, "False", reason, message)
        return
    head = draft.situation.seen.head(job)
    if head is not None and draft.status.current and draft.status.current.cluster != job.cluster:
        draft.update_current(cluster=job.cluster, head=head.uid)
    if (links := draft.situation.links) is not None:
        draft.update(endpoints=links)
    draft.state(RunCondition.SCHEDULED, "True", "Running", f"RayJob {job.name} runs as RayCluster {job.cluster}")
    _tell_whether_it_answers(draft, told)


def _tell_whether_it_answers(draft: Draft, told: Progress | None) -> None:
    silent = draft.situation.seen.driver
    if told is not None:
        stage = told.stage or draft.status.stage or "(none yet)"
        draft.state(RunCondition.PROGRESSING, "True", "StageRunning", f"stage {stage} runs")
        return
    has_answered_before = draft.find(RunCondition.PROGRESSING) is not None
    is_silent = isinstance(silent, Silent) and silent.seconds >= draft.situation.timing.unreachable_seconds
    if isinstance(silent, Silent) and is_silent and has_answered_before:
        draft.state(RunCondition.PROGRESSING, "False", "Unreachable", f"the driver does not answer: {silent.reason}")


def _starting(draft: Draft, job: JobSeen) -> tuple[str, str]:
    """Reason and message while the attempt's pods come up."""
    pods = [pod for pod in draft.situation.seen.pods if (pod.segment, pod.attempt) == (job.segment, job.attempt)]
    running = sum(pod.phase == "Running" for pod in pods)
    waiting: PodSeen | None = next((pod for pod in pods if pod.phase != "Running" and pod.waits_for), None)
    detail = f"; {waiting.name}: {waiting.waits_for}" if waiting else ""
    is_queued = waiting is not None and waiting.waits_for.startswith("Unschedulable")
    return "Queued" if is_queued else "Starting", f"{running} of {len(pods)} pods run{detail}"


def _tell_settings(draft: Draft, told: Progress | None) -> None:
    """Hand over live settings that changed since the driver took them last."""
    settings = live_settings(draft.situation.run.spec)
    mark = digest(settings)
    if told is not None and draft.status.current is not None and draft.status.current.settings != mark:
        draft.actions.append(PutSettings(settings))
        draft.update_current(settings=mark)
        draft.update(guards=digest(settings.guards))


def _stop_if_asked(draft: Draft, job: JobSeen, told: Progress | None) -> None:
    """Let the driver write a checkpoint and end, if the run is to be suspended or its stages are others now."""
    situation, current = draft.situation, draft.status.current
    if current is None:
        return
    stages = {stage.name: stage for stage in situation.run.spec.stages}
    why = "it is suspended" if situation.run.spec.suspend else ""
    if changed := changed_stages(job.stages, stages):
        why = f"stages changed: {', '.join(changed)}"
    if not why and current.stopping_since is None:
        return
    since = current.stopping_since or situation.now
    if situation.seen.driver is None or draft.has_passed(since, situation.timing.stop_grace_seconds):
        draft.actions.clear()
        release(draft)
        return
    if told is not None:
        draft.actions.append(StopDriver())
        draft.state(RunCondition.PROGRESSING, "True", "Stopping", f"writes a checkpoint and ends: {why or 'as asked'}")
    draft.update_current(stopping_since=since)
