"""The chart on a real node: the operator becomes ready in a restricted namespace, and packets go where they may."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hack.cluster import Cluster, Grade
from hack.cluster.images.operator import OPERATOR, operator_image
from hack.cluster.images.samples import BUSYBOX, busybox_image
from tests.charts import CHART, NAMESPACE, RELEASE, helm
from tests.clusters import cluster_of

pytestmark = pytest.mark.timeout(900)

PORTS = (6379, 8000, 8080, 8090, 8265, 10001)
"""GCS, endpoint of a pool, Ray's metrics, driver, dashboard, client."""
OPERATOR_LABELS = {
    "app.kubernetes.io/name": "seatrial",
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/component": "operator",
}
CALLERS = {
    "run": ("team-a", {"seatrial.dev/run": "another"}),
    "pool": ("team-a", {"seatrial.dev/pool": "another"}),
    "plain": ("team-a", {}),
    "foreign-run": ("team-b", {"seatrial.dev/run": "r"}),
    "kuberay": ("kuberay-system", {"app.kubernetes.io/name": "kuberay-operator"}),
    "prometheus": ("monitoring", {"app.kubernetes.io/name": "prometheus"}),
    "operator": (NAMESPACE, OPERATOR_LABELS),
}
"""Namespace and labels of pods that try to reach others."""
TARGETS = {"target-run": {"seatrial.dev/run": "r"}, "target-pool": {"seatrial.dev/pool": "p"}}
"""Labels of pods in team-a that they try to reach."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node of this test's own, where the chart has been installed as an administrator would."""
    for node in cluster_of(Grade.NODE):
        for archive in (busybox_image(), operator_image()):
            node.load(archive)
        for name in ("team-a", "team-b", "kuberay-system", "monitoring", NAMESPACE):
            node.kubectl("create", "namespace", name)
        node.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        repository, tag = OPERATOR.rsplit(":", 1)
        values = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "config": {"namespaces": ["team-a"]},
            "admission": {"enabled": False},  # this test's pods pose as runs
            "replicas": 2,
        }
        helm("install", RELEASE, str(CHART), "--wait", "--timeout=300s", cluster=node, values=values)
        yield node


def test_its_own_test_passes(cluster: Cluster) -> None:
    said = helm("test", RELEASE, "--logs", cluster=cluster)
    assert "Phase:          Succeeded" in said
    assert said.count(" answers") == 3


def test_of_two_operators_one_holds_the_lease(cluster: Cluster) -> None:
    pods = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator", "-o", "name")
    assert len(pods.split()) == 2
    holder = cluster.kubectl(
        "get", "lease", "seatrial-operator", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"
    )
    assert [pod for pod in pods.split() if holder.startswith(pod.removeprefix("pod/"))]


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Cluster:
    """Servers that pose as the pods of a run and of a pool, and callers from everywhere."""
    servers = " & ".join(f"httpd -f -p {port} -h /www" for port in PORTS)
    serve = f"mkdir -p /www && echo hello > /www/index.html && {servers}"
    items = [
        *(pod(name, "team-a", labels, serve) for name, labels in TARGETS.items()),
        *(pod(f"from-{name}", namespace, labels, "sleep 3600") for name, (namespace, labels) in CALLERS.items()),
    ]
    cluster.apply(*items)
    for item in items:
        name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "-n", namespace, f"pod/{name}")
    return cluster


def pod(name: str, namespace: str, labels: dict[str, str], script: str) -> dict[str, Any]:
    """A pod with a shell, as restricted as its namespace may ask for."""
    container: dict[str, Any] = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "www", "mountPath": "/www"}],
    }
    if "httpd" in script:
        container["readinessProbe"] = {"tcpSocket": {"port": PORTS[-1]}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "www", "emptyDir": {}}],
        },
    }


@pytest.fixture(scope="module")
def reached(pods: Cluster) -> dict[str, set[tuple[str, int]]]:
    """By caller: targets and ports that answer. All are tried at once, since a packet that is dropped is waited for."""
    with ThreadPoolExecutor(len(CALLERS)) as threads:
        return dict(zip(CALLERS, threads.map(lambda caller: answers(pods, caller), CALLERS), strict=True))


def answers(cluster: Cluster, caller: str) -> set[tuple[str, int]]:
    """Targets and ports that answer a pod."""
    found = json.loads(cluster.kubectl("get", "pods", *TARGETS, "-n", "team-a", "-o", "json"))["items"]
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in found}
    tries = " ".join(
        f"(timeout 10 wget -qO- http://{address}:{port}/index.html >/dev/null 2>&1 && echo {name} {port}) &"
        for name, address in addresses.items()
        for port in PORTS
    )
    namespace, _ = CALLERS[caller]
    said = cluster.kubectl("exec", "-n", namespace, f"from-{caller}", "--", "sh", "-c", f"{tries} wait")
    return {(name, int(port)) for name, port in map(str.split, said.splitlines())}


@pytest.mark.parametrize(
    ("caller", "ports"),
    [
        ("run", set(PORTS)),
        ("kuberay", {8265}),
        ("operator", {8090}),
        ("prometheus", {8080, 8090}),
        ("pool", set()),
        ("plain", set()),
        ("foreign-run", set()),
    ],
)
def test_a_run_is_reached_by_whom_the_decision_names(
    reached: dict[str, set[tuple[str, int]]], caller: str, ports: set[int]
) -> None:
    assert {port for target, port in reached[caller] if target == "target-run"} == ports


@pytest.mark.parametrize(
    ("caller", "ports"),
    [
        ("pool", set(PORTS)),
        ("kuberay", {8265}),
        ("operator", {8000}),
        ("prometheus", {8000, 8080}),
        ("plain", {8000}),
        ("foreign-run", set()),
    ],
)
def test_a_pool_is_reached_at_its_endpoint_by_its_namespace(
    reached: dict[str, set[tuple[str, int]]], caller: str, ports: set[int]
) -> None:
    assert {port for target, port in reached[caller] if target == "target-pool"} == ports
