import json

import pytest

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from hack.cluster.pki import KUBERAY


def ray_cluster(name: str, *, workers: int) -> dict[str, object]:
    pod = {"spec": {"containers": [{"name": "ray", "image": "none"}]}}
    group = {"groupName": "rollout", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    spec = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {}, "template": pod},
        "workerGroupSpecs": [group | {"rayStartParams": {}, "template": pod}],
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def test_kuberay_makes_the_pods_of_a_cluster_and_fake_nodes_run_them(controllers: Cluster) -> None:
    nodes = controllers.fake_nodes(2, cpu="8")
    controllers.apply(ray_cluster("on-fake-nodes", workers=2))
    controllers.kubectl("wait", "--for=jsonpath={.status.state}=ready", "--timeout=180s", "raycluster/on-fake-nodes")
    selector = "--selector=ray.io/cluster=on-fake-nodes"
    pods = json.loads(controllers.kubectl("get", "pods", selector, "--output=json"))["items"]
    assert len(pods) == 3
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(nodes)


def test_kuberay_has_the_rights_of_its_own_role_and_no_others(controllers: Cluster) -> None:
    acting = [f"--as={KUBERAY.user}", f"--as-group={KUBERAY.group}"]
    assert controllers.kubectl("auth", "can-i", "create", "pods", "--all-namespaces", *acting).strip() == "yes"
    with pytest.raises(CommandError, match="no"):
        controllers.kubectl("auth", "can-i", "list", "secrets", "--all-namespaces", *acting)


def test_garbage_is_collected(controllers: Cluster) -> None:
    controllers.kubectl("create", "namespace", "to-go")
    controllers.kubectl("create", "configmap", "inside", "--namespace=to-go")
    controllers.kubectl("delete", "namespace", "to-go", "--timeout=180s")
    assert "to-go" not in controllers.kubectl("get", "namespaces")
