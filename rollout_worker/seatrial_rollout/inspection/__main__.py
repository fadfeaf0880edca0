"""`python -m seatrial_rollout.inspection`: the Job with which the operator inspects a world in its own sandboxes.

Its log holds the report. Its last word, which Kubernetes keeps in the pod's status, is the result; or, if there is
none, why.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import structlog

from seatrial_api.errors import InvalidInputError, SeatrialError
from seatrial_api.inspection_request import (
    INSPECTION_VARIABLE,
    INVALID_EXIT_CODE,
    MAX_TERMINATION_BYTES,
    InspectionRequest,
)
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.inspection.inspecting import inspect_world, write_report
from seatrial_rollout.inspection.result import result_of
from seatrial_rollout.object_store.store import ObjectStore

log = structlog.get_logger(__name__)


async def carry_out(request: InspectionRequest) -> None:
    """Inspect, and tell what was found in log, storage and last word.

    Raises:
        SeatrialError: if it could not be done.
    """
    sandbox = SandboxSpec(provider="kubernetes", world=request.world)
    report = await inspect_world(request.world, request.inspection, request.base_dir, request.trials, sandbox)
    sys.stdout.write(report.text())
    with tempfile.TemporaryDirectory() as scratch:
        files = write_report(report, request.report_dir or Path(scratch))
        if request.kept_in:
            store = ObjectStore.of(request.kept_in)
            for file in files:
                store.put(file.name, file)
    result = result_of(report, request.inspection.max_flakiness, MAX_TERMINATION_BYTES)
    request.result_file.write_text(result.model_dump_json(by_alias=True), encoding="utf-8")


def main() -> int:
    """Entry point: 0 whatever was found, 2 if the tasks cannot be used, 1 if it may work another time."""
    request = InspectionRequest.model_validate_json(os.environ[INSPECTION_VARIABLE])
    try:
        asyncio.run(carry_out(request))
    except SeatrialError as error:
        log.error("the world cannot be inspected", world=request.world, error=str(error))  # noqa: TRY400  it suffices
        request.result_file.write_bytes(str(error).encode()[:MAX_TERMINATION_BYTES])
        return INVALID_EXIT_CODE if isinstance(error, InvalidInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
