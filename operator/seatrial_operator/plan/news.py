"""What a driver tells of itself, taken over into the run's status."""

import math
from datetime import datetime, timedelta

from seatrial_api.progress import Progress, StageProgress
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.stage_report import GateResult, StageResult
from seatrial_api.status import HeadlineMetrics, RLRunStatus, StageStatus
from seatrial_api.status import Progress as ProgressStatus

_TEXT_CHARS = 1024


def with_news(status: RLRunStatus, told: Progress, spec: RLRunSpec, now: datetime) -> RLRunStatus:
    """`status` with what the current attempt's driver told at `now`."""
    rows = _rows(status, told, spec, now)
    train = next((stage for stage in spec.stages if stage.name == told.stage and stage.train), None)
    current = status.current
    if train is not None and current is not None and current.first_step is None:
        current = current.model_copy(update={"first_step": told.step})
    has_checkpointed = (
        train is not None
        and current is not None
        and current.first_step is not None
        and told.step - current.first_step >= spec.checkpoint.every_steps
    )
    has_progress = has_checkpointed or _num_passed(rows) > _num_passed(status.stages)
    return status.model_copy(
        update={
            "stage": told.stage or (rows[-1].name if rows else status.stage),
            "stages": rows,
            "progress": _progress(told) if told.stage else status.progress,
            "metrics": _metrics(told, status.metrics),
            "checkpoints": told.checkpoints or status.checkpoints,
            "sandbox": told.sandbox[:_TEXT_CHARS] or status.sandbox,
            "current": current,
            "failures": 0 if has_progress else status.failures,
        }
    )


def _rows(status: RLRunStatus, told: Progress, spec: RLRunSpec, now: datetime) -> list[StageStatus]:
    """One row for each stage that has begun, in the order of the spec; what the driver does not speak of stays."""
    former = {row.name: row for row in status.stages}
    news = {stage.name: stage for stage in told.stages if stage.seconds is not None or stage.result is not None}
    rows: list[StageStatus] = []
    for stage in spec.stages:
        if stage.name in news:
            rows.append(_row(former.get(stage.name), news[stage.name], status.attempt, now))
        elif stage.name in former:
            rows.append(former[stage.name])
    return rows


def _row(former: StageStatus | None, told: StageProgress, attempt: int, now: datetime) -> StageStatus:
    is_known_end = former is not None and former.result is not None and former.result == told.result
    began = now - timedelta(seconds=math.floor(told.seconds or 0.0))
    return StageStatus(
        name=told.name,
        result=told.result,
        message=told.message[:_TEXT_CHARS],
        attempt=former.attempt if former and is_known_end else attempt,
        started_at=former.started_at if former and former.started_at else began,
        finished_at=None if told.result is None else (former.finished_at if former and is_known_end else now),
        checkpoint=told.checkpoint and told.checkpoint[:_TEXT_CHARS],
        gates=[_finite_gate(gate) for gate in told.gates[:32]],
    )


def _finite_gate(gate: GateResult) -> GateResult:
    """JSON has no infinity: a value that is no number counts as not measured, which fails a gate all the same."""
    if gate.value is None or math.isfinite(gate.value):
        return gate
    return gate.model_copy(update={"value": None, "detail": f"measured {gate.value}; {gate.detail}"})


def _num_passed(rows: list[StageStatus]) -> int:
    return sum(row.result is StageResult.PASSED for row in rows)


def _progress(told: Progress) -> ProgressStatus:
    remaining = told.estimated_remaining_seconds
    return ProgressStatus(
        step=max(0, told.step),
        of=max(0, told.of),
        percent=min(100, max(0, math.floor(told.percent))) if math.isfinite(told.percent) else 0,
        estimated_remaining_seconds=None
        if remaining is None or not math.isfinite(remaining)
        else max(0, int(remaining)),
    )


def _metrics(told: Progress, former: HeadlineMetrics | None) -> HeadlineMetrics:
    """A figure that a new attempt has not measured yet keeps its last value."""
    figures = {
        "reward": told.metrics.get("reward"),
        "validation_pass_rate": told.metrics.get("validation_pass_at_1"),
        "staleness_steps": told.metrics.get("staleness_mean"),
        "logprob_diff": told.metrics.get("logprob_abs_diff"),
        "prefix_cache_hit_rate": told.metrics.get("prefix_cache_hit_rate"),
        "cost_dollars": told.metrics.get("cost_dollars"),
        "error_rate": told.metrics.get("error_rate"),
    }
    known = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
    return (former or HeadlineMetrics()).model_copy(update={**known, "trials_in_flight": max(0, told.in_flight)})
