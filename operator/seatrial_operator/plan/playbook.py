"""Where a run stands in its playbook, by its status."""

from seatrial_api.playbook import Segment, Step, next_step, segments_of
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_operator.plan.draft import Draft

_FINAL = frozenset({StageResult.PASSED, StageResult.GATE_FAILED, StageResult.GUARDED})
"""Results that stand. A stage that failed or was interrupted is tried again, as long as attempts are left."""


def step_of(draft: Draft, *, resume: bool = False) -> Step:
    """What comes next, by the stages that ended."""
    spec = draft.situation.run.spec
    kinds = {stage.name: stage.kind for stage in spec.stages}
    reports = {
        row.name: StageReport(
            stage=row.name,
            kind=kinds[row.name],
            result=row.result,
            message=row.message,
            gates=row.gates,
            checkpoint=row.checkpoint,
        )
        for row in draft.status.stages
        if row.result in _FINAL and row.name in kinds
    }
    return next_step(spec.stages, reports, hold=spec.topology.hold, resume=resume)


def segment_at(draft: Draft, index: int) -> Segment | None:
    """The segment of this index; none if the stages were changed so that there is none."""
    spec = draft.situation.run.spec
    segments = segments_of(spec.stages, spec.topology.hold)
    return segments[index] if index < len(segments) else None
