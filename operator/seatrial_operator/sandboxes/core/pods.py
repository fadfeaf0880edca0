"""What a sandbox's pod says about itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from seatrial_api.sandboxes import (
    CLAIMED_AT_ANNOTATION,
    RESTARTS_ANNOTATION,
    REVISION_LABEL,
    RUN_ANNOTATION,
    TRIAL_LABEL,
    WORLD_LABEL,
)
from seatrial_operator.sandboxes.core.failures import Failure, end_of, failure_of, unscheduled


@dataclass(frozen=True, slots=True)
class SandboxPod:
    """One pod, as of one version of it."""

    name: str
    uid: str
    version: int
    """Its `resourceVersion`, which rises over all objects of the API server."""
    world: str
    revision: str
    """Which form of the world it was made from."""
    created_at: float
    """In s since the epoch, as are all times of a pod."""
    is_ready: bool = False
    is_scheduled: bool = False
    unready_since: float = 0.0
    """When it was given its node, or was ready last."""
    is_gated: bool = False
    """Whether a queue such as Kueue holds it back; such a pod is never removed for being slow."""
    is_going: bool = False
    """Whether it was deleted and has not ended yet."""
    trial: str = ""
    """Who claimed it; empty if nobody has."""
    run: str = ""
    claimed_at: float = 0.0
    restarts: int = 0
    """Restarts of all containers."""
    address: str = ""
    node: str = ""
    image: str = ""
    """The world's image."""
    failure: Failure | None = None
    hold_up: Failure | None = None
    """Why it has no node yet; the scheduler goes on trying."""


def read_sandbox(item: dict[str, Any]) -> SandboxPod:
    """A pod as the API server holds it. Anyone who may change pods may write nonsense into annotations."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    labels, annotations = metadata["labels"], metadata.get("annotations") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    name, trial, is_going = metadata["name"], labels.get(TRIAL_LABEL, ""), "deletionTimestamp" in metadata
    restarts, created_at = _restarts(status), epoch(metadata["creationTimestamp"])
    known_restarts = annotations.get(RESTARTS_ANNOTATION, "")
    has_restarted = bool(trial) and restarts > (int(known_restarts) if known_restarts.isdecimal() else 0)
    failure = end_of(name, status) if is_going else failure_of(name, status, has_restarted=has_restarted)
    return SandboxPod(
        name=name,
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        world=labels[WORLD_LABEL],
        revision=labels.get(REVISION_LABEL, ""),
        created_at=created_at,
        is_ready=conditions.get("Ready", {}).get("status") == "True" and bool(status.get("podIP")),
        is_scheduled=bool(spec.get("nodeName")),
        unready_since=max(created_at, *(_changed_at(conditions.get(kind)) for kind in ("PodScheduled", "Ready"))),
        is_gated=bool(spec.get("schedulingGates")),
        is_going=is_going,
        trial=trial,
        run=annotations.get(RUN_ANNOTATION, ""),
        claimed_at=_epoch_or(annotations.get(CLAIMED_AT_ANNOTATION, ""), created_at),
        restarts=restarts,
        address=status.get("podIP", ""),
        node=spec.get("nodeName", ""),
        image=spec["containers"][0]["image"],
        failure=failure,
        hold_up=unscheduled(name, status),
    )


def epoch(text: str) -> float:
    """Seconds since the epoch of a time as the API server writes it."""
    return datetime.fromisoformat(text).timestamp()


def _epoch_or(text: str, otherwise: float) -> float:
    try:
        return epoch(text)
    except ValueError:
        return otherwise


def _changed_at(condition: dict[str, Any] | None) -> float:
    return _epoch_or((condition or {}).get("lastTransitionTime") or "", 0.0)


def _restarts(status: dict[str, Any]) -> int:
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return sum(one.get("restartCount", 0) for one in containers)
