"""What a real kubelet says of pods that pull, and what the operator reads in it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hack.cluster import Cluster
from hack.cluster.images.samples import BUSYBOX, PAUSE, busybox_image
from hack.cluster.layout import NODE_NAME
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_operator.manifests.worlds import pull_pod
from seatrial_operator.plan.prepull import PullPod, PullState, read_pull_pod
from tests.node_registry import pushed
from tests.worlds import world

NAMESPACE = "pulls"
ABSENT = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def cluster(node: Cluster) -> Iterator[Cluster]:
    """A node whose registry holds an image with a shell and one without."""
    node.load(busybox_image())
    node.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield node
    node.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


async def pulled(cluster: Cluster, name: str, image: str, **spec: Any) -> PullPod:
    """What is read of a pod that pulls, once it is more than pulling."""
    wanted = world(image=image, **spec)
    manifest = pull_pod(wanted, "none", image, NODE_NAME)
    labels = manifest["metadata"]["labels"]
    manifest["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": labels}  # nobody's: kubectl makes it
    cluster.apply(manifest)
    deadline = Deadline.after(90)
    while True:
        pod = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pod", name, "-o", "json"))
        found = read_pull_pod(pod)
        if found.state is not PullState.PULLING:
            return found
        deadline.check(f"pod {name}: {pod['status']}")
        await SYSTEM_CLOCK.sleep(0.2)


async def test_an_image_with_a_shell_is_pulled(cluster: Cluster) -> None:
    assert (await pulled(cluster, "shell", pushed(cluster, BUSYBOX))).state is PullState.PULLED


async def test_an_image_without_any_program_is_pulled_as_well(cluster: Cluster) -> None:
    assert (await pulled(cluster, "bare", pushed(cluster, PAUSE))).state is PullState.PULLED


async def test_files_that_come_as_an_image_are_pulled_beside_it(cluster: Cluster) -> None:
    files = [{"image": pushed(cluster, PAUSE)}]
    assert (await pulled(cluster, "files", pushed(cluster, BUSYBOX), populate=files)).state is PullState.PULLED


@pytest.mark.parametrize("place", ["world", "files"])
async def test_an_image_that_is_not_there_fails_with_the_registrys_words(cluster: Cluster, place: str) -> None:
    there, absent = pushed(cluster, BUSYBOX), f"127.0.0.1:5000/none@{ABSENT}"
    image, files = (absent, []) if place == "world" else (there, [{"image": absent}])
    found = await pulled(cluster, f"absent-{place}", image, populate=files)
    assert found.state is PullState.FAILING
    assert "none" in found.message
