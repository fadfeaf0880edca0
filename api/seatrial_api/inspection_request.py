"""What the operator and the Job that inspects a world agree on."""

from pathlib import Path

from seatrial_api.base import ApiModel, Name, Positive
from seatrial_api.spec.model import S3Source
from seatrial_api.world_image import Inspection

INSPECTION_VARIABLE = "SEATRIAL_INSPECTION"
"""Environment variable with the Job's `InspectionRequest`, as JSON."""
TERMINATION_LOG = Path("/dev/termination-log")
"""Where a container leaves its last word, an `InspectionResult` as JSON or why there is none, for its pod's status."""
MAX_TERMINATION_BYTES = 4096
"""Kubernetes' bound on it."""
INVALID_EXIT_CODE = 2
"""Of a Job whose tasks cannot be used: trying again is of no use."""
REPORT_NAME = "inspection"
"""Name of the report's files, without `.md` and `.json`."""


class InspectionRequest(ApiModel):
    """What to inspect. Trials run in sandboxes of the world, claimed from the broker."""

    world: Name
    """Name of the WorldImage."""
    inspection: Inspection
    """What it must prove."""
    trials: Positive
    """Trials at once."""
    base_dir: Path
    """Folder that relative paths of task sets start at."""
    report_dir: Path | None = None
    """Where the report goes besides the log; nowhere if empty."""
    kept_in: S3Source | None = None
    """Prefix that the report goes to, where run storage is in S3."""
    result_file: Path = TERMINATION_LOG
    """Where the result goes."""
