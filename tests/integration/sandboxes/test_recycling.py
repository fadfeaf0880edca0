"""Why no sandbox is recycled: what a restart of its container leaves behind, on a real node."""

import threading
from collections.abc import Iterator

import pytest

from hack.cluster import Cluster, Grade
from hack.cluster.images.samples import BUSYBOX, busybox_image
from seatrial_api.clock import Deadline
from tests.clusters import cluster_of

NAME = "recycled"
TRIAL = """
for place in /dev/shm /scratch /tmp; do
  test -e $place/left && echo found $place
  echo secret > $place/left
done
echo looked
"""
"""Tells what the trial before it left, and leaves something itself."""


@pytest.fixture
def fresh_node() -> Iterator[Cluster]:
    """A node that nothing else ever ran on."""
    yield from cluster_of(Grade.NODE)


def test_shared_memory_and_volumes_of_a_trial_outlive_a_restart_of_its_container(fresh_node: Cluster) -> None:
    node = fresh_node
    node.load(busybox_image())
    once = "test -e /scratch/restarted && exec sleep 3600; touch /scratch/restarted; exit 1"
    container = {
        "name": "world",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", TRIAL + once],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    spec = {"restartPolicy": "OnFailure", "containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]}
    metadata = {"name": NAME, "namespace": "default"}
    node.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        assert _told_after_the_restart(node).split("\n") == ["found /dev/shm", "found /scratch", "looked"]
    finally:
        node.kubectl("delete", "pod", NAME, "--grace-period=0", "--force", "--wait=false")


def _told_after_the_restart(node: Cluster) -> str:
    deadline, pause = Deadline.after(120), threading.Event()
    count = "jsonpath={.status.containerStatuses[0].restartCount}"
    while node.kubectl("get", "pod", NAME, "-o", count) != "1" or not (told := node.kubectl("logs", NAME).strip()):
        deadline.check("the container to be started again")
        pause.wait(0.2)
    return told
