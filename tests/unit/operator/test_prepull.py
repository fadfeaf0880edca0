"""Which node pulls next, and what a pod says of the images on its node."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_operator.manifests.worlds import images_id, pull_pod
from seatrial_operator.plan.prepull import PullPod, PullState, plan_pulls, read_pull_pod
from tests.worlds import DIGEST, world

READY = {f"n{index}": True for index in range(5)}
PULLED, PULLING, FAILING, LOST = PullState.PULLED, PullState.PULLING, PullState.FAILING, PullState.LOST


def pods(*states: PullState, images: str = "new") -> list[PullPod]:
    """Pods on the first nodes."""
    return [PullPod(f"p{index}", f"u{index}", f"n{index}", images, state) for index, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "parallelism", "start"),
    [
        ([], 2, ["n0", "n1"]),
        ([PULLED], 2, ["n1", "n2"]),
        ([PULLED, PULLING], 2, ["n2"]),
        ([PULLING, PULLING], 2, []),
        ([FAILING, PULLING], 2, ["n2"]),
        ([FAILING, FAILING], 2, []),
        ([LOST], 9, ["n0", "n1", "n2", "n3", "n4"]),
        ([PULLED] * 5, 2, []),
    ],
)
def test_as_many_nodes_pull_at_once_as_parallelism_says(
    states: list[PullState], parallelism: int, start: list[str]
) -> None:
    assert list(plan_pulls(READY, pods(*states), "new", parallelism).start) == start


def test_pods_of_other_images_gone_nodes_and_lost_ones_are_removed() -> None:
    old = pods(PULLED, images="old")
    gone = PullPod("gone", "u", "elsewhere", "new", PULLED)
    lost = PullPod("lost", "u", "n2", "new", LOST)
    plan = plan_pulls(READY, [*old, gone, lost], "new", 9)
    assert {pod.name for pod in plan.remove} == {"p0", "gone", "lost"}
    assert plan.num_pulled == 0


def test_a_node_that_is_not_ready_is_not_waited_for_but_keeps_its_pod() -> None:
    plan = plan_pulls({"n0": False, "n1": True}, pods(PULLED, PULLED), "new", 9)
    assert (plan.num_pulled, plan.num_wanted, plan.remove, plan.start) == (1, 1, (), ())


@given(
    st.dictionaries(st.sampled_from([f"n{index}" for index in range(8)]), st.booleans()),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["new", "old"]), st.sampled_from(list(PullState)))),
    st.integers(1, 4),
)
def test_no_node_ever_gets_two_pods_nor_more_than_parallelism_pull(
    nodes: dict[str, bool], drawn: list[tuple[int, str, PullState]], parallelism: int
) -> None:
    observed = [
        PullPod(f"p{index}", f"u{index}", f"n{node}", images, state)
        for index, (node, images, state) in enumerate(drawn)
    ]
    plan = plan_pulls(nodes, observed, "new", parallelism)
    kept = [pod for pod in observed if pod not in plan.remove]
    after = [pod.node for pod in kept] + list(plan.start)
    assert len(after) == len(set(after))
    assert set(after) <= set(nodes)
    assert all(pod.images == "new" for pod in kept)
    pulling = [pod for pod in kept if pod.state is PULLING and nodes[pod.node]]
    assert not plan.start or len(pulling) + len(plan.start) <= parallelism


SIDECARS = {"kind": "Sidecars", "sidecars": [{"name": "crm", "image": "ghcr.io/worlds/crm:v1", "port": 8000}]}
IMAGE = f"ghcr.io/worlds/acme@{DIGEST}"
RUNNING: dict[str, Any] = {"state": {"running": {}}}
ENDED: dict[str, Any] = {"state": {"terminated": {"containerID": "containerd://1", "exitCode": 0}}}
NOT_STARTED: dict[str, Any] = {
    "state": {"terminated": {"containerID": "containerd://1", "reason": "StartError", "exitCode": 128}}
}
KILLED_BEFORE: dict[str, Any] = {"state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """Status of a container that waits."""
    return {"state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        ({}, PULLING, ""),
        ({"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")] * 2}, PULLING, ""),
        ({"phase": "Running", "containerStatuses": [RUNNING, waiting("ContainerCreating")]}, PULLING, ""),
        ({"phase": "Running", "containerStatuses": [RUNNING, ENDED]}, PULLED, ""),
        ({"phase": "Succeeded", "containerStatuses": [ENDED, ENDED]}, PULLED, ""),
        ({"phase": "Failed", "containerStatuses": [NOT_STARTED, ENDED]}, PULLED, ""),
        (
            {"phase": "Pending", "containerStatuses": [ENDED, waiting("ErrImagePull", "403 from the registry")]},
            FAILING,
            "403 from the registry",
        ),
        ({"phase": "Pending", "containerStatuses": [waiting("ImagePullBackOff")] * 2}, FAILING, "ImagePullBackOff"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, LOST, "disk pressure"),
        ({"phase": "Failed", "reason": "OutOfpods"}, LOST, "OutOfpods"),
        (
            {"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": [ENDED, KILLED_BEFORE]},
            LOST,
            "DeadlineExceeded",
        ),
    ],
)
def test_a_pod_tells_whether_its_node_holds_the_images(status: dict[str, Any], state: PullState, message: str) -> None:
    pod = pull_pod(world(mcp=SIDECARS), "uid", IMAGE, "n1")
    pod["metadata"]["uid"] = "u1"
    found = read_pull_pod({**pod, "status": status})
    assert (found.node, found.state, found.message) == ("n1", state, message)


def test_a_pull_pod_brings_everything_that_a_sandbox_is_made_of() -> None:
    wanted = world(mcp=SIDECARS, populate=[{"image": "ghcr.io/worlds/files:v1"}])
    pod = pull_pod(wanted, "uid", IMAGE, "n1")
    assert [one["image"] for one in pod["spec"]["containers"]] == [IMAGE, "ghcr.io/worlds/crm:v1"]
    assert [one["image"]["reference"] for one in pod["spec"]["volumes"]] == ["ghcr.io/worlds/files:v1"]
    assert images_id(wanted.spec, IMAGE) != images_id(world().spec, IMAGE)
