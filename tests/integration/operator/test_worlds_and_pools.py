"""The operator's process with a world and a pool that stands alone: told by its watches, killed, told again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import Cluster
from hack.cluster.layout import ROOT
from tests.operator_process import free_lease, operator_config, operator_process
from tests.registries import registry

NAMESPACE = "worlds-and-pools"
KIND = {"apiVersion": "seatrial.dev/v1alpha1"}


@pytest.fixture(scope="module")
def cluster(controllers: Cluster) -> Iterator[Cluster]:
    """A cluster with two fake nodes, and a namespace of this module's own."""
    controllers.apply_crds(ROOT / "crds")
    controllers.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    nodes = controllers.fake_nodes(2)
    controllers.kubectl("label", "nodes", *nodes, f"{NAMESPACE}=yes")
    yield controllers
    controllers.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    controllers.kubectl("delete", "nodes", *nodes, "--wait=false")


def wait(cluster: Cluster, what: str, condition: str) -> None:
    """Until kubectl sees it, a minute at most."""
    cluster.kubectl("-n", NAMESPACE, "wait", f"--for={condition}", "--timeout=180s", what)


def uids(cluster: Cluster) -> set[str]:
    """Every object that the operator made."""
    kinds = "pods,secrets,services,rayclusters"
    found = cluster.kubectl("-n", NAMESPACE, "get", kinds, "-l", "app.kubernetes.io/managed-by=seatrial", "-o", "json")
    return {item["metadata"]["uid"] for item in json.loads(found)["items"]}


async def test_worlds_and_pools_come_to_be_and_outlive_an_operator_that_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = operator_config("http://127.0.0.1:1", namespaces=[NAMESPACE], servingUrl="http://127.0.0.1:1")
    metadata: dict[str, Any] = {"namespace": NAMESPACE}
    async with registry(tmp_path) as images:
        await images.push("worlds/acme", "v1")
        image = f"{images.host}/worlds/acme:v1"
        world = {"image": image, "prePull": {"nodeSelector": {NAMESPACE: "yes"}}}
        model = {"source": {"hf": {"repo": "Qwen/Qwen3-0.6B"}}, "contextLength": {"train": 2048}}
        role = {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}
        pool = {"model": model, "engines": {"replicas": 1}, "role": role}
        with operator_process(tmp_path, cluster.kubeconfig, config) as operator:
            cluster.apply(
                {**KIND, "kind": "WorldImage", "metadata": metadata | {"name": "acme"}, "spec": world},
                {**KIND, "kind": "RolloutPool", "metadata": metadata | {"name": "office"}, "spec": pool},
            )
            wait(cluster, "worldimage/acme", "condition=Ready")
            wait(cluster, "rolloutpool/office", "jsonpath={.status.endpoint}")
            wait(cluster, "rolloutpool/office", "jsonpath={.status.replicas}=1")
            made = uids(cluster)
            operator.kill()
        free_lease(cluster)

        with operator_process(tmp_path, cluster.kubeconfig, config):
            cluster.kubectl("-n", NAMESPACE, "scale", "rolloutpool/office", "--replicas=2")
            wait(cluster, "rolloutpool/office", "jsonpath={.status.replicas}=2")
            assert made < uids(cluster)
    head = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", "ray.io/node-type=head", "-o", "json"))
    [ray, *_] = head["items"][0]["spec"]["containers"]
    assert "exec python -m seatrial_rollout.serving" in ray["args"][0]
    [generated] = [one["value"] for one in ray["env"] if one["name"] == "KUBERAY_GEN_RAY_START_CMD"]
    assert generated.startswith("ray start --head")
