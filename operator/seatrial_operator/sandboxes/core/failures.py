"""Why a sandbox did not come up, or is no longer there."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

type Status = dict[str, Any]
"""A part of a pod's status as JSON has it."""


class FailureKind(StrEnum):
    """By what the caller, or an administrator, can do about it."""

    WORLD = "World"
    """The WorldImage does not exist, or is not resolved."""
    IMAGE_PULL = "ImagePull"
    """An image of the world cannot be pulled."""
    CONTAINER = "Container"
    """A container does not start, or ended by itself."""
    OUT_OF_MEMORY = "OutOfMemory"
    """A container used more memory than its limit."""
    EVICTED = "Evicted"
    """The node was short of something, or the pod was preempted."""
    NODE_LOST = "NodeLost"
    """The node is gone, or does not answer."""
    DEADLINE = "Deadline"
    """The claim's deadline passed while it waited."""
    QUOTA = "Quota"
    """A quota of the namespace, or an admission policy, refuses more pods."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room."""
    LIFETIME = "Lifetime"
    """The sandbox lived as long as its pool allows."""
    LEASE = "Lease"
    """The lease was not renewed in time."""
    DELETED = "Deleted"
    """Somebody else deleted the pod."""

    @property
    def needs_a_person(self) -> bool:
        """Whether waiting is of little use: claims are answered with it before their deadline."""
        return self in {FailureKind.WORLD, FailureKind.IMAGE_PULL, FailureKind.CONTAINER, FailureKind.OUT_OF_MEMORY}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure."""

    kind: FailureKind
    message: str
    """What happened, to what, and the way out, for a person."""


_PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_STARTS = frozenset(
    {"CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
)
_WORDS_CHARS = 500
"""Of the last words of a container, which Kubernetes takes from its log."""
_DISRUPTIONS = {
    "DeletionByTaintManager": FailureKind.NODE_LOST,
    "DeletionByPodGC": FailureKind.NODE_LOST,
    "PreemptionByScheduler": FailureKind.EVICTED,
    "EvictionByEvictionAPI": FailureKind.EVICTED,
    "TerminationByKubelet": FailureKind.EVICTED,
}
_REASONS = {
    "Evicted": FailureKind.EVICTED,
    "Preempting": FailureKind.EVICTED,
    "NodeLost": FailureKind.NODE_LOST,
    "NodeShutdown": FailureKind.NODE_LOST,
    "Terminated": FailureKind.NODE_LOST,
    "DeadlineExceeded": FailureKind.LIFETIME,
}


def failure_of(name: str, status: Status, *, has_restarted: bool = False) -> Failure | None:
    """What is wrong with a pod; nothing while it runs or may yet come up.

    Args:
        name: The pod.
        status: Its status.
        has_restarted: Whether a container was restarted since a trial took the pod, and lost what the trial did.
    """
    return _of_pod(name, status) or _of_containers(name, status, has_restarted) or _of_phase(name, status)


def end_of(name: str, status: Status) -> Failure:
    """Why a pod went away that we did not delete."""
    return failure_of(name, status) or Failure(FailureKind.DELETED, f"pod {name} was deleted, and not by the broker")


def unscheduled(name: str, status: Status) -> Failure | None:
    """Why a pod has no node, as the scheduler tells it."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Failure(FailureKind.UNSCHEDULABLE, f"pod {name}: {condition.get('message', 'no node has room')}")
    return None


def _of_pod(name: str, status: Status) -> Failure | None:
    reason, message = status.get("reason", ""), status.get("message", "")
    if reason in _REASONS:
        return Failure(_REASONS[reason], f"pod {name}: {reason}: {message}")
    for condition in status.get("conditions") or []:
        kind = _DISRUPTIONS.get(condition.get("reason", ""))
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True" and kind:
            return Failure(kind, f"pod {name}: {condition['reason']}: {condition.get('message', '')}")
    return None


def _of_containers(name: str, status: Status, has_restarted: bool) -> Failure | None:
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        where = f"container {container['name']} of pod {name}"
        ended = _ended(container)
        if ended.get("reason") == "OOMKilled":
            return Failure(FailureKind.OUT_OF_MEMORY, f"{where} used more memory than its limit; raise the limit")
        waiting = container.get("state", {}).get("waiting") or {}
        told = f"{where}: {waiting.get('reason')}: {waiting.get('message', '')}"
        if waiting.get("reason") in _PULLS:
            return Failure(FailureKind.IMAGE_PULL, told)
        if waiting.get("reason") in _STARTS:
            return Failure(FailureKind.CONTAINER, told)
        if has_restarted and container.get("restartCount"):
            return Failure(FailureKind.CONTAINER, f"{where} was restarted; it ended with {_exit(ended)}")
        if container.get("state", {}).get("terminated", {}).get("exitCode"):
            return Failure(FailureKind.CONTAINER, f"{where} ended with {_exit(ended)}")
    return None


def _ended(container: Status) -> Status:
    """How a container ended: now, else before its newest start."""
    for state in (container.get("state"), container.get("lastState")):
        if state and state.get("terminated"):
            return dict(state["terminated"])
    return {}


def _exit(ended: Status) -> str:
    told = f"exit code {ended.get('exitCode', 'unknown')} ({ended.get('reason', 'no reason')})"
    words = ended.get("message", "").strip()
    return f"{told}: {words[-_WORDS_CHARS:]}" if words else told


def _of_phase(name: str, status: Status) -> Failure | None:
    phase = status.get("phase")
    if phase in {"Failed", "Succeeded"}:
        return Failure(FailureKind.CONTAINER, f"pod {name} ended by itself: {phase} {status.get('reason', '')}".strip())
    if phase == "Unknown":
        return Failure(FailureKind.NODE_LOST, f"the node of pod {name} does not answer")
    return None
