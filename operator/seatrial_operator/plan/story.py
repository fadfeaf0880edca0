"""What happened to a run between two statuses, as events for people."""

from collections.abc import Iterator
from typing import Literal

from seatrial_api.conditions import RunCondition
from seatrial_api.playbook import segments_of
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.stage_report import GateResult, StageResult
from seatrial_api.status import RLRunStatus, StageStatus
from seatrial_operator.plan.actions import Story
from seatrial_operator.plan.draft import find

type _Level = Literal["Normal", "Warning"]

_ENDS: dict[StageResult, tuple[_Level, str]] = {
    StageResult.PASSED: ("Normal", "StagePassed"),
    StageResult.GATE_FAILED: ("Warning", "StageGateFailed"),
    StageResult.GUARDED: ("Warning", "StageGuarded"),
    StageResult.FAILED: ("Warning", "StageFailed"),
    StageResult.INTERRUPTED: ("Normal", "StageInterrupted"),
}

_TOLD_WHEN: tuple[tuple[RunCondition, str, _Level], ...] = (
    (RunCondition.ACCEPTED, "False", "Warning"),
    (RunCondition.ACCEPTED, "True", "Normal"),
    (RunCondition.SUSPENDED, "True", "Normal"),
    (RunCondition.SUSPENDED, "False", "Normal"),
    (RunCondition.GUARDED, "True", "Warning"),
    (RunCondition.GUARDED, "False", "Normal"),
    (RunCondition.FAILED, "True", "Warning"),
    (RunCondition.FAILED, "False", "Normal"),
    (RunCondition.COMPLETE, "True", "Normal"),
    (RunCondition.PROGRESSING, "False", "Warning"),
)
"""Conditions that are worth an event when they come to have this status or reason."""
_TOLD_REASONS: dict[str, _Level] = {"NodesLost": "Warning", "Refused": "Warning", "Stopping": "Normal"}


def stories(old: RLRunStatus, new: RLRunStatus, spec: RLRunSpec) -> list[Story]:
    """Events that tell the way from `old` to `new`, in order."""
    return [*_stages(old, new, spec), *_conditions(old, new), *_attempt(old, new, spec)]


def _conditions(old: RLRunStatus, new: RLRunStatus) -> Iterator[Story]:
    for condition in new.conditions:
        kind = RunCondition(condition.type)
        former = find(old, kind)
        if former is not None and (former.status, former.reason) == (condition.status, condition.reason):
            continue
        told = next((level for on, status, level in _TOLD_WHEN if (on, status) == (kind, condition.status)), None)
        level = _TOLD_REASONS.get(condition.reason, told)
        if level is not None:
            yield Story(level, condition.reason, condition.message)


def _attempt(old: RLRunStatus, new: RLRunStatus, spec: RLRunSpec) -> Iterator[Story]:
    if new.current is None:
        return
    segments = segments_of(spec.stages, spec.topology.hold)
    stages = ", ".join(segments[new.segment].stages) if new.segment < len(segments) else "none"
    which = f"attempt {new.attempt} of segment {new.segment} ({stages})"
    if old.current is None or (old.segment, old.attempt) != (new.segment, new.attempt):
        yield Story("Normal", "AttemptStarted", which)
    elif old.current.settings is not None and old.current.settings != new.current.settings:
        yield Story("Normal", "SettingsApplied", f"{which}: the driver took over concurrency and guards")


def _stages(old: RLRunStatus, new: RLRunStatus, spec: RLRunSpec) -> Iterator[Story]:
    former = {row.name: row for row in old.stages}
    for row in new.stages:
        before = former.get(row.name)
        if row.result is None and new.stage == row.name and (before is None or before.attempt != row.attempt):
            kind = next((stage.kind for stage in spec.stages if stage.name == row.name), "")
            yield Story("Normal", "StageStarted", f"{row.name} ({kind})")
        if row.result is not None and (before is None or before.result is not row.result):
            level, reason = _ENDS[row.result]
            yield Story(level, reason, _end_of(row))


def _end_of(row: StageStatus) -> str:
    parts = [part for part in (row.message, *map(_gate, row.gates)) if part]
    return f"{row.name}: {'; '.join(parts)}" if parts else row.name


def _gate(gate: GateResult) -> str:
    sign = "<=" if gate.direction == "AtMost" else ">="
    value = "not measured" if gate.value is None else f"{gate.value:.4g}"
    return f"{gate.name} {value} ({'holds' if gate.passed else 'fails'}: {sign} {gate.bound:.4g})"
