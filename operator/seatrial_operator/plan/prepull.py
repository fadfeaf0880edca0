"""Which node pulls a world's images next: one pod a node, so many at once.

A DaemonSet would start on every node at the same moment, and a registry, or the network to it, would give in. A pod
that has pulled stays: it takes no room on its node, it is the record that the node holds the images, and its dead
container keeps the kubelet from removing them as unused.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from seatrial_operator.manifests.worlds import IMAGES_LABEL, node_of

FAILED_PULLS = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons for which a kubelet lets a container wait, and tries again by itself."""


class PullState(StrEnum):
    """How far one node is."""

    PULLING = "Pulling"
    """The pod waits for its node, or pulls."""
    PULLED = "Pulled"
    """Every container was made, so that every image is there; whether its command then ran is all the same."""
    FAILING = "Failing"
    """A pull failed; the kubelet tries again."""
    LOST = "Lost"
    """The pod ended before it pulled: evicted, refused by its node, or out of time."""


@dataclass(frozen=True, slots=True)
class PullPod:
    """One pod that pulls."""

    name: str
    uid: str
    node: str
    images: str
    """Value of its `IMAGES_LABEL`."""
    state: PullState
    message: str = ""
    """What went wrong, if something did."""


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What to do, and how far it is."""

    start: tuple[str, ...]
    """Nodes that get a pod now."""
    remove: tuple[PullPod, ...]
    """Pods that are of no use any more."""
    num_wanted: int
    num_pulled: int
    failures: tuple[PullPod, ...]
    """Pods that fail, by node."""


def plan_pulls(nodes: Mapping[str, bool], pods: Collection[PullPod], images: str, parallelism: int) -> PullPlan:
    """Decide which nodes pull next.

    A failing pod gives its place up, or one bad node would hold all others up; but when as many fail as may pull at
    once, it is the registry, and no other node starts.

    Args:
        nodes: Selected nodes, and whether they are ready; one that is not is not waited for.
        pods: All pods that pull for this world.
        images: What they shall pull; pods that pull something else are removed.
        parallelism: Nodes that pull at once.
    """
    current = [pod for pod in pods if pod.images == images and pod.node in nodes and pod.state is not PullState.LOST]
    by_node = {pod.node: pod for pod in sorted(current, key=lambda pod: pod.name)}
    wanted = sorted(node for node, is_ready in nodes.items() if is_ready)
    on_wanted = [by_node[node] for node in wanted if node in by_node]
    failures = tuple(pod for pod in on_wanted if pod.state is PullState.FAILING)
    num_pulling = sum(pod.state is PullState.PULLING for pod in on_wanted)
    room = max(0, parallelism - num_pulling) if len(failures) < parallelism else 0
    return PullPlan(
        start=tuple([node for node in wanted if node not in by_node][:room]),
        remove=tuple(pod for pod in pods if by_node.get(pod.node) is not pod),
        num_wanted=len(wanted),
        num_pulled=sum(pod.state is PullState.PULLED for pod in on_wanted),
        failures=failures,
    )


def read_pull_pod(pod: Mapping[str, Any]) -> PullPod:
    """What a pod's status says about the images on its node."""
    metadata, status = pod["metadata"], pod.get("status", {})
    containers = status.get("containerStatuses", [])
    state, message = _state(pod, status.get("phase", ""), containers)
    if state is PullState.LOST:
        message = status.get("message") or status.get("reason") or "the pod ended before it had pulled"
    return PullPod(metadata["name"], metadata["uid"], node_of(pod), metadata["labels"][IMAGES_LABEL], state, message)


def _state(pod: Mapping[str, Any], phase: str, containers: Iterable[Mapping[str, Any]]) -> tuple[PullState, str]:
    made = [container for container in containers if _is_made(container.get("state", {}))]
    if len(made) == len(pod["spec"]["containers"]):
        return PullState.PULLED, ""
    if phase in {"Failed", "Succeeded"}:
        return PullState.LOST, ""
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in FAILED_PULLS:
            return PullState.FAILING, waiting.get("message") or waiting["reason"]
    return PullState.PULLING, ""


def _is_made(state: Mapping[str, Any]) -> bool:
    return "running" in state or bool(state.get("terminated", {}).get("containerID"))
