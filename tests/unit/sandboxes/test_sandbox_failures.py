"""What is wrong with a pod, from its status as Kubernetes writes it."""

from typing import Any

import pytest

from seatrial_operator.sandboxes.core.failures import FailureKind
from seatrial_operator.sandboxes.core.pods import SandboxPod, read_sandbox

TIME = "2026-11-30T09:00:00Z"


def pod(status: dict[str, Any], *, trial: str = "", restarts_at_claim: int = 0, is_going: bool = False) -> SandboxPod:
    """A sandbox with this status."""
    labels = {"seatrial.dev/world": "acme", **({"seatrial.dev/trial": trial} if trial else {})}
    annotations = {"seatrial.dev/restarts-at-claim": str(restarts_at_claim)} if trial else {}
    metadata: dict[str, Any] = {
        "name": "acme-1",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-30T09:00:00Z",
    }
    going = {"deletionTimestamp": "2026-11-30T09:00:00Z"} if is_going else {}
    spec = {"nodeName": "node", "containers": [{"image": "registry.test/acme@sha256:0"}]}
    return read_sandbox(
        {
            "metadata": {**metadata, **going, "labels": labels, "annotations": annotations},
            "spec": spec,
            "status": status,
        }
    )


def containers(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    """The status of a pod whose one container is in this state."""
    one = {"name": "world", "state": state, "lastState": last or {}, "restartCount": restarts}
    return {"phase": "Running", "containerStatuses": [one]}


def disrupted(reason: str) -> dict[str, Any]:
    """The status of a pod that was disrupted."""
    return {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"phase": "Pending"}, None),
        (containers({"running": {}}), None),
        (containers({"waiting": {"reason": "ContainerCreating"}}), None),
        (containers({"waiting": {"reason": "ErrImagePull", "message": "not found"}}), FailureKind.IMAGE_PULL),
        (containers({"waiting": {"reason": "ImagePullBackOff"}}), FailureKind.IMAGE_PULL),
        (containers({"waiting": {"reason": "CreateContainerConfigError"}}), FailureKind.CONTAINER),
        (containers({"waiting": {"reason": "CrashLoopBackOff"}}, KILLED, 3), FailureKind.OUT_OF_MEMORY),
        (containers(KILLED), FailureKind.OUT_OF_MEMORY),
        (containers({"terminated": {"exitCode": 2, "reason": "Error"}}), FailureKind.CONTAINER),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}, FailureKind.EVICTED),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, FailureKind.LIFETIME),
        ({"phase": "Succeeded"}, FailureKind.CONTAINER),
        ({"phase": "Unknown"}, FailureKind.NODE_LOST),
        (disrupted("PreemptionByScheduler"), FailureKind.EVICTED),
        (disrupted("EvictionByEvictionAPI"), FailureKind.EVICTED),
        (disrupted("DeletionByTaintManager"), FailureKind.NODE_LOST),
        (disrupted("DeletionByPodGC"), FailureKind.NODE_LOST),
    ],
)
def test_a_status_tells_what_is_wrong(status: dict[str, Any], kind: FailureKind | None) -> None:
    failure = pod(status).failure
    assert (failure.kind if failure else None) is kind
    assert failure is None or "acme-1" in failure.message


def test_the_last_words_of_a_container_are_told() -> None:
    ended = {
        "terminated": {
            "exitCode": 1,
            "reason": "Error",
            "message": "x" * 1000 + "\n/workspace/key: Permission denied\n",
        }
    }
    failure = pod(containers(ended)).failure
    assert failure is not None
    assert "exit code 1 (Error): xxx" in failure.message
    assert failure.message.endswith("x\n/workspace/key: Permission denied")
    assert len(failure.message) < 600


def test_a_restart_is_a_failure_only_after_a_trial_took_the_sandbox() -> None:
    restarted = containers({"running": {}}, {"terminated": {"exitCode": 1}}, restarts=1)
    assert pod(restarted).failure is None
    assert pod(restarted, trial="t", restarts_at_claim=1).failure is None
    lost = pod(restarted, trial="t", restarts_at_claim=0).failure
    assert lost is not None
    assert lost.kind is FailureKind.CONTAINER


def test_a_pod_that_somebody_deletes_is_lost_with_the_reason_if_there_is_one() -> None:
    deleted = pod(containers({"running": {}}), is_going=True).failure
    drained = pod(disrupted("EvictionByEvictionAPI"), is_going=True).failure
    assert deleted is not None
    assert deleted.kind is FailureKind.DELETED
    assert drained is not None
    assert drained.kind is FailureKind.EVICTED


def test_nonsense_in_annotations_stops_nobody() -> None:
    labels = {"seatrial.dev/world": "acme", "seatrial.dev/trial": "t"}
    annotations = {"seatrial.dev/restarts-at-claim": "many", "seatrial.dev/claimed-at": "once upon a time"}
    metadata = {"name": "acme-1", "uid": "u", "resourceVersion": "7", "creationTimestamp": TIME}
    spec = {"containers": [{"image": "registry.test/acme@sha256:0"}]}
    read = read_sandbox({"metadata": {**metadata, "labels": labels, "annotations": annotations}, "spec": spec})
    assert read.claimed_at == read.created_at > 0


def test_a_pod_without_a_node_is_held_up_and_has_not_failed() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    seen = pod({"phase": "Pending", "conditions": [condition]})
    assert seen.failure is None
    assert seen.hold_up is not None
    assert "0/3 nodes" in seen.hold_up.message
