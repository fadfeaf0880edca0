"""A report in a few words, as a WorldImage's status holds it."""

from seatrial_api.world_image import InspectionResult
from seatrial_rollout.inspection.faults import FaultKind, InspectionReport

_SHOWN_FAULTS = 5
_FAULT_CHARS = 400


def result_of(report: InspectionReport, max_flakiness: float, max_bytes: int) -> InspectionResult:
    """What a report comes to.

    Args:
        report: What was found.
        max_flakiness: Share of tasks, 0 to 1, that may be flaky.
        max_bytes: Room for the result as JSON; later faults are left out where there is too little.
    """
    order = list(FaultKind)
    gravest = sorted(report.faults, key=lambda fault: order.index(fault.kind))[:_SHOWN_FAULTS]
    counts = {kind.value: report.count(kind) for kind in order}
    result = InspectionResult(
        passed=report.passes(max_flakiness),
        tasks=report.tasks,
        trials=report.trials,
        faults={kind: count for kind, count in counts.items() if count},
        first=[f"{fault.kind} {fault.task}: {fault.detail}"[:_FAULT_CHARS] for fault in gravest],
    )
    while result.first and len(result.model_dump_json(by_alias=True).encode()) > max_bytes:
        result = result.model_copy(update={"first": result.first[:-1]})
    return result
