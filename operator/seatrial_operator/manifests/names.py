"""Names, labels and owners of the objects of a run."""

from typing import Any

from seatrial_api.kubernetes_object import API_GROUP, API_VERSION
from seatrial_api.playbook import Segment
from seatrial_api.pods import ATTEMPT_LABEL, MANAGED_BY_LABEL, RUN_LABEL, SEGMENT_LABEL
from seatrial_api.rlrun import RLRun

type Manifest = dict[str, Any]
"""An object, or a part of one, as the API server takes it."""

MANAGED_BY = {MANAGED_BY_LABEL: "seatrial"}


def job_name(run: str, segment: int, attempt: int) -> str:
    """Name of the RayJob of an attempt, and of its Secret."""
    return f"{run}-s{segment}-a{attempt}"


def run_labels(run: RLRun) -> dict[str, str]:
    """Labels of everything that belongs to a run."""
    return {**MANAGED_BY, RUN_LABEL: run.metadata.name}


def attempt_labels(run: RLRun, segment: Segment, attempt: int) -> dict[str, str]:
    """Labels of everything that belongs to one attempt at a segment, pods included."""
    return {**run_labels(run), SEGMENT_LABEL: str(segment.index), ATTEMPT_LABEL: str(attempt)}


def owner_reference(kind: str, name: str, uid: str) -> Manifest:
    """What makes an object of ours go with its owner. It does not hold the owner's deletion up."""
    return {
        "apiVersion": f"{API_GROUP}/{API_VERSION}",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def owned_by_run(run: RLRun, uid: str, name: str, labels: dict[str, str]) -> Manifest:
    """Metadata of an object that the run owns and that lies beside it.

    Args:
        run: The run.
        uid: Its `metadata.uid`.
        name: Name of the object.
        labels: Labels of the object.
    """
    namespace = {"namespace": run.metadata.namespace} if run.metadata.namespace else {}
    owners = [owner_reference("RLRun", run.metadata.name, uid)]
    return {"name": name, **namespace, "labels": labels, "ownerReferences": owners}
