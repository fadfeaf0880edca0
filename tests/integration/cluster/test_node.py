import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import Cluster, Grade
from hack.cluster.errors import CommandError
from hack.cluster.images.operator import OPERATOR, operator_image
from hack.cluster.images.ray import RAY, checkout_volume, ray_image, with_checkout
from hack.cluster.images.samples import BUSYBOX, busybox_image
from hack.cluster.layout import ROOT
from hack.cluster.node import registry
from tests.clusters import cluster_of
from tests.leftovers import descendants, eventually, is_running, mounts_in

# Where kubelets, runtimes and network plugins leave things unless told otherwise.
USUAL_TRACES = ("/etc/cni", "/opt/containerd", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/pods")


@pytest.fixture(scope="module")
def shells(node: Cluster) -> Iterator[Cluster]:
    """A node with a server, and a client that may not reach it and one that may."""
    node.load(busybox_image())
    node.kubectl("create", "namespace", "shells")
    serve = "mkdir -p /www && echo hello > /www/index.html && exec httpd -f -p 8080 -h /www"
    probe = {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1}
    node.apply(
        pod("server", command=["sh", "-c", serve], readinessProbe=probe),
        pod("client", command=["sleep", "3600"]),
        pod("friend", command=["sleep", "3600"]),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "server", "namespace": "shells"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    node.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "--namespace=shells", "pods", "--all")
    yield node
    node.kubectl("delete", "namespace", "shells", "--wait=false")


def pod(name: str, **container: Any) -> dict[str, Any]:
    image = {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shells", "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [image | container]},
    }


def fetch(cluster: Cluster, *, source: str, url: str) -> str:
    return cluster.kubectl("exec", "--namespace=shells", source, "--", "timeout", "5", "wget", "-qO-", url)


def test_a_pod_reaches_a_service_by_its_name(shells: Cluster) -> None:
    assert fetch(shells, source="client", url="http://server.shells.svc.cluster.local/").strip() == "hello"


def test_a_pod_reads_who_it_is_from_the_api_server(shells: Cluster) -> None:
    told = shells.kubectl("exec", "--namespace=shells", "client", "--", "cat", "/etc/resolv.conf")
    assert "shells.svc.cluster.local" in told
    address = shells.kubectl("get", "pod", "client", "--namespace=shells", "--output=jsonpath={.status.podIP}")
    assert address in shells.kubectl("exec", "--namespace=shells", "client", "--", "ip", "address")


def test_a_network_policy_confines_a_pod(shells: Cluster) -> None:
    friends = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "only-friends", "namespace": "shells"},
        "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [friends]},
    }
    url = "http://server.shells.svc.cluster.local/"
    shells.apply(policy)
    try:
        assert fetch(shells, source="friend", url=url).strip() == "hello"
        with pytest.raises(CommandError, match="exit code 143"):
            fetch(shells, source="client", url=url)
    finally:
        shells.kubectl("delete", "networkpolicy", "only-friends", "--namespace=shells")
    assert fetch(shells, source="client", url=url).strip() == "hello"


def test_a_pod_pulls_its_image_from_the_nodes_registry(shells: Cluster) -> None:
    if not registry.is_installed():
        pytest.skip("needs a registry: apt-get install docker-registry")
    reference = shells.push(BUSYBOX)
    shells.apply(pod("pulled", image=reference, imagePullPolicy="Always", command=["sleep", "3600"]))
    shells.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "--namespace=shells", "pod/pulled")
    told = "--output=jsonpath={.status.containerStatuses[0].imageID}"
    assert f"{registry.ADDRESS}/busybox@sha256:" in shells.kubectl("get", "pod", "pulled", "--namespace=shells", told)


def test_the_operators_image_holds_the_operator_and_nothing_heavy(shells: Cluster) -> None:
    shells.load(operator_image())
    code = """
import importlib.util, os, seatrial_operator.config
print(os.getuid(), [name for name in ("torch", "ray", "vllm", "seatrial_trainer") if importlib.util.find_spec(name)])
"""
    shells.apply(pod("operator", image=OPERATOR, command=["python", "-c", code]))
    done = "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}=0"
    shells.kubectl("wait", done, "--timeout=180s", "--namespace=shells", "pod/operator")
    assert shells.kubectl("logs", "operator", "--namespace=shells").strip() == "65532 []"


async def test_two_nodes_run_beside_each_other_and_nothing_is_left_of_one_even_if_its_keeper_is_killed(
    node: Cluster,
) -> None:
    before = usual_traces()
    for other in cluster_of(Grade.NODE):
        copy = other.find()
        assert copy is not None
        other.load(busybox_image())
        other.kubectl("create", "namespace", "shells")
        other.apply(pod("alone", command=["sleep", "3600"]))
        other.kubectl("wait", "--for=condition=Ready", "--timeout=180s", "--namespace=shells", "pod/alone")
        assert "alone" not in node.kubectl("get", "pods", "--all-namespaces")
        processes = descendants(copy.keeper)
        os.kill(copy.keeper, signal.SIGKILL)
        await eventually(lambda: not any(map(is_running, processes)), what="all of the node to end")  # noqa: B023  awaited in the loop
        other.stop()
        assert traces_of(other) == []
    assert usual_traces() == before


def test_nothing_is_left_of_a_node_that_could_not_start(node: Cluster, tmp_path: Path) -> None:
    refusing = tmp_path / "bin" / "unshare"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\nexit 3\n")
    refusing.chmod(0o755)
    folder = tmp_path / f"copy-{os.getpid()}"
    script = """
import os, sys
from pathlib import Path
from hack.cluster import Cluster, ClusterError, Grade
try:
    Cluster(Path(sys.argv[1])).launch(Grade.NODE, f"--owner={os.getpid()}")
except ClusterError as exc:
    print(exc)
"""
    env = os.environ | {"PATH": f"{refusing.parent}:{os.environ['PATH']}"}
    words = [sys.executable, "-c", script, str(folder)]
    told = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    assert "namespaces are not allowed here" in told
    assert not folder.exists()
    assert list(Path("/sys/fs/cgroup").glob(f"*/{folder.name}")) == []


def test_a_ray_job_runs_in_the_thin_image(node: Cluster) -> None:
    node.load(ray_image())
    node.kubectl("create", "namespace", "thin")
    node.apply(*checkout_volume("thin"), ray_job())
    done = "--for=jsonpath={.status.jobStatus}=SUCCEEDED"
    try:
        node.kubectl("wait", done, "--timeout=240s", "--namespace=thin", "rayjob/answer")
    finally:
        node.kubectl("delete", "namespace", "thin", "--wait=false")
        node.kubectl("delete", "persistentvolume", "checkout-thin", "--wait=false")


def traces_of(cluster: Cluster) -> list[str]:
    folder = cluster.layout.folder
    cgroups = Path("/sys/fs/cgroup").glob(f"**/{folder.name}")
    return [str(path) for path in (folder, *cgroups) if path.exists()] + mounts_in(folder)


def usual_traces() -> list[Path]:
    return [path for path in map(Path, USUAL_TRACES) if path.exists()]


def ray_job() -> dict[str, Any]:
    container = {
        "name": "ray",
        "image": RAY,
        "imagePullPolicy": "Never",
        "env": [{"name": "RAY_AUTH_MODE", "value": "disabled"}],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "3Gi"}},
    }
    mounting = with_checkout("ray")["spec"]
    container |= mounting["containers"][0]
    template = {"spec": {"containers": [container], "volumes": mounting["volumes"], "terminationGracePeriodSeconds": 1}}
    store = {"object-store-memory": "100000000"}
    task = "ray.remote(lambda: torch.ones(6, 7).sum().item()).remote()"
    code = f"import ray, torch; ray.init(); assert ray.get({task}) == 42"
    group = {"groupName": "rollout", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "template": template}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "answer", "namespace": "thin"},
        "spec": {
            "entrypoint": f"python -c '{code}'",
            "submissionMode": "HTTPMode",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "rayVersion": "2.60.0",
                "headGroupSpec": {"rayStartParams": store | {"num-cpus": "0"}, "template": template},
                "workerGroupSpecs": [group | {"rayStartParams": store | {"num-cpus": "1"}}],
            },
        },
    }
