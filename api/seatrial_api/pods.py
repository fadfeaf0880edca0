"""What the operator, the driver and a cluster's administrator agree on about a run's pods: paths, ports and names."""

from enum import StrEnum
from pathlib import PurePosixPath

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""Its value `seatrial` is on everything that the operator makes."""
RUN_LABEL = "seatrial.dev/run"
"""Name of the RLRun."""
SEGMENT_LABEL = "seatrial.dev/segment"
"""Index of the segment of stages, from 0."""
ATTEMPT_LABEL = "seatrial.dev/attempt"
"""How often the segment was started again, from 0."""
ROLE_LABEL = "seatrial.dev/role"
"""A pod's `Role`."""
POOL_LABEL = "seatrial.dev/pool"
"""Name of the RolloutPool whose engines a pod runs."""

STORAGE_MOUNT = PurePosixPath("/seatrial/storage")
"""Where run storage is mounted: the whole PersistentVolumeClaim."""
PVC_MOUNT = PurePosixPath("/seatrial/pvc")
"""Below it, every other PersistentVolumeClaim that a source names, read-only, by the claim's name."""
REQUEST_MOUNT = PurePosixPath("/seatrial/request")
"""Where the head finds `run.json`."""
SCRATCH_MOUNT = PurePosixPath("/seatrial/scratch")
"""A pod's own folder, gone with it; also the home of its user."""

INPUTS_VARIABLE = "SEATRIAL_INPUTS"
"""Environment variable with the `PodInputs` of a pod that has to bring them, as JSON."""

DRIVER_PORT = 8090
"""Port of the driver's `/v1/*`, `/metrics` and `/healthz` on the head."""
DRIVER_PORT_NAME = "driver"
RAY_METRICS_PORT_NAME = "metrics"
"""Port of Ray's own metrics on every pod."""


class Role(StrEnum):
    """What a pod does in a run."""

    HEAD = "head"
    """Ray's head, which runs the driver."""
    ROLLOUT = "rollout"
    """Runs engines; on a run's only node the policy's ranks besides."""
    TRAIN = "train"
    """Runs the policy's ranks."""
    AGENTS = "agents"
    """Runs trials."""

    @property
    def ray_resource(self) -> str:
        """Ray's custom resource, of which each pod of the role has 1: an actor that asks for a bit lands there."""
        return f"seatrial_{self.value}"


def pvc_folder(claim: str, path: str) -> PurePosixPath:
    """Where a folder of a claim that a source names lies in every pod of the run."""
    return PVC_MOUNT / claim / path
