"""The chart's admission policies, evaluated by a real API server. All users have every right: only policies refuse."""

import copy
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from seatrial_api.clock import Deadline
from seatrial_api.world_image import WorldImage
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.manifests.sandbox_pod import SandboxPlan, named, sandbox_pod
from tests.charts import KUBERAY, OPERATOR
from tests.manifests import run_manifest

SOMEBODY = "somebody"
SPOOFED = {"seatrial.dev/run": "another"}

type Object = dict[str, Any]


@pytest.fixture(scope="module")
def policies(installed: Cluster) -> Cluster:
    """Policies that are in force, which takes the API server a moment."""
    installed.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata(), "name": "default"}})
    deadline, pause = Deadline.after(180), threading.Event()
    for probe in (secret(SPOOFED), {**pool(), "spec": {"run": "r"}}, sandbox(hostNetwork=True)):
        while not refusal(installed, probe):
            deadline.check("the policies to be in force")
            pause.wait(0.1)
    return installed


def refusal(cluster: Cluster, item: Object, user: str = SOMEBODY, *, command: str = "create") -> str:
    """What the API server says against an object, which it does not keep; empty if it takes it."""
    try:
        cluster.kubectl(command, "--dry-run=server", *acting(user), "-f", "-", stdin=json.dumps(item))
    except CommandError as exc:
        return str(exc)
    return ""


def acting(user: str) -> list[str]:
    """Options of kubectl by which it acts as somebody with every right."""
    return [f"--as={user}", "--as-group=system:masters"]


def metadata(labels: dict[str, str] | None = None) -> Object:
    return {"name": "x", "namespace": "team-a", "labels": labels or {}}


def secret(labels: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(labels)}


def pool() -> Object:
    model = {"source": {"path": "model"}, "contextLength": {"train": 4096}}
    return {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": metadata(),
        "spec": {"model": model},
    }


def pod(labels: dict[str, str] | None = None) -> Object:
    containers = [{"name": "c", "image": "i"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(labels), "spec": {"containers": containers}}


def ray_cluster(labels: dict[str, str] | None = None, *, head: bool = True) -> Object:
    plain, labelled = ({"metadata": {"labels": given}, "spec": pod()["spec"]} for given in ({}, labels or {}))
    spec = {
        "headGroupSpec": {"rayStartParams": {}, "template": labelled if head else plain},
        "workerGroupSpecs": [
            {"groupName": "w", "rayStartParams": {}, "template": plain if head else labelled, "replicas": 1}
        ],
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata(), "spec": spec}


def ray_job(labels: dict[str, str]) -> Object:
    spec = {"entrypoint": "true", "rayClusterSpec": ray_cluster(labels)["spec"]}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata(), "spec": spec}


def plain_job(labels: dict[str, str] | None = None) -> Object:
    template = {"metadata": {"labels": labels or {}}, "spec": {**pod()["spec"], "restartPolicy": "Never"}}
    own = metadata({"app": "x"})  # a Job without labels takes those of its template
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": {"template": template}}


@pytest.mark.parametrize("item", [secret(SPOOFED), pod(SPOOFED)], ids=lambda item: item["kind"])
def test_a_label_of_ours_is_refused_from_anybody_but_the_operator(policies: Cluster, item: Object) -> None:
    assert "set by the Seatrial operator alone; remove seatrial.dev/run" in refusal(policies, item)
    assert refusal(policies, item, OPERATOR) == ""


@pytest.mark.parametrize(
    "item",
    [ray_cluster(SPOOFED), ray_cluster(SPOOFED, head=False), ray_job(SPOOFED), plain_job(SPOOFED)],
    ids=["head", "worker", "ray-job", "job"],
)
def test_a_label_of_ours_is_refused_in_a_pod_template_that_is_copied(policies: Cluster, item: Object) -> None:
    assert "remove them from the pod templates" in refusal(policies, item)
    assert refusal(policies, item, OPERATOR) == ""


def test_a_scheduler_may_suspend_and_place_what_the_operator_labelled(policies: Cluster) -> None:
    item = ray_job(SPOOFED)
    item["metadata"]["name"] = "of-the-operator"
    policies.kubectl("create", *acting(OPERATOR), "-f", "-", stdin=json.dumps(item))
    item["metadata"]["annotations"] = {"mine": "1"}
    item["spec"]["suspend"] = True
    template = item["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    template["spec"]["nodeSelector"] = {"pool": "a"}
    template["metadata"]["labels"]["kueue.x-k8s.io/podset"] = "head"
    assert refusal(policies, item, command="replace") == ""
    template["metadata"]["labels"]["seatrial.dev/run"] = "yet-another"
    assert "remove them from the pod templates" in refusal(policies, item, command="replace")


@pytest.mark.parametrize("controller", [KUBERAY, "system:serviceaccount:kube-system:job-controller"])
def test_a_controller_copies_the_operators_labels(policies: Cluster, controller: str) -> None:
    assert refusal(policies, pod(SPOOFED), controller) == ""


@pytest.mark.parametrize(
    "item", [secret({"a": "b"}), pod(), plain_job(), ray_cluster(), pool()], ids=lambda item: item["kind"]
)
def test_other_objects_are_nobodys_business(policies: Cluster, item: Object) -> None:
    assert refusal(policies, item) == ""


def test_labels_of_ours_can_be_neither_changed_nor_removed_later(policies: Cluster) -> None:
    kept = secret({"seatrial.dev/run": "r"})
    policies.kubectl("create", *acting(OPERATOR), "-f", "-", stdin=json.dumps(kept))
    changed, removed = copy.deepcopy(kept), copy.deepcopy(kept)
    changed["metadata"]["labels"]["seatrial.dev/run"] = "another"
    removed["metadata"]["labels"] = {}
    assert "remove seatrial.dev/run" in refusal(policies, changed, command="replace")
    assert "leave seatrial.dev/run" in refusal(policies, removed, command="replace")
    other = {**kept, "stringData": {"key": "value"}}
    assert refusal(policies, other, command="replace") == ""


def test_status_is_the_operators(policies: Cluster) -> None:
    manifest = run_manifest(metadata__namespace="team-a")
    policies.kubectl("create", *acting(SOMEBODY), "-f", "-", stdin=json.dumps(manifest))
    patch = ("patch", "rlrun", "run", "-n", "team-a", "--subresource=status", "--type=merge", "-p")
    body = '{"status":{"phase":"Succeeded"}}'
    with pytest.raises(CommandError, match="status is written by the Seatrial operator alone"):
        policies.kubectl(*patch, body, *acting(SOMEBODY))
    policies.kubectl(*patch, body, *acting(OPERATOR))
    policies.kubectl("label", "rlrun", "run", "-n", "team-a", "mine=1", *acting(SOMEBODY))


def test_a_runs_pool_is_made_by_the_operator_alone(policies: Cluster) -> None:
    owned = {**pool(), "spec": {"run": "r"}}
    assert "a pool with spec.run is made and changed by the Seatrial operator alone" in refusal(policies, owned)
    assert refusal(policies, owned, OPERATOR) == ""


def test_controllers_do_not_carry_a_users_labels_to_pods(policies: Cluster) -> None:
    controller = "system:serviceaccount:kube-system:replicaset-controller"
    assert "remove seatrial.dev/role" in refusal(policies, pod({"seatrial.dev/role": "agents"}), controller)


def network_policy(labels: dict[str, str]) -> Object:
    everything: Object = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(labels),
        "spec": everything,
    }


def test_what_sandboxes_may_reach_is_the_brokers_to_say(policies: Cluster) -> None:
    of_a_world = network_policy({"seatrial.dev/world": "office"})
    assert "made by the Seatrial broker alone" in refusal(policies, of_a_world)
    assert refusal(policies, network_policy({"app": "mine"})) == ""
    policies.kubectl("create", *acting(OPERATOR), "-f", "-", stdin=json.dumps(of_a_world))
    changed = {**of_a_world, "spec": {**of_a_world["spec"], "policyTypes": ["Ingress"]}}
    freed = {**of_a_world, "metadata": metadata()}
    for item in (changed, freed):
        assert "made by the Seatrial broker alone" in refusal(policies, item, command="replace")
    assert "made by the Seatrial broker alone" in refusal(policies, of_a_world, command="delete")
    collector = "system:serviceaccount:kube-system:generic-garbage-collector"
    assert refusal(policies, of_a_world, collector, command="delete") == ""


def sandbox(**spec: Any) -> Object:
    """A pod with the role `sandbox` that holds to every rule, but for what is given."""
    container = {
        "name": "world",
        "image": "i",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    container |= spec.pop("container", {})
    good = {
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata({"seatrial.dev/role": "sandbox"}),
        "spec": good | spec,
    }


def _security(**context: Any) -> Callable[[], Object]:
    good = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return lambda: sandbox(container={"securityContext": good | context})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sandbox(automountServiceAccountToken=True), "automountServiceAccountToken"),
        (lambda: sandbox(hostNetwork=True), "hostNetwork"),
        (lambda: sandbox(hostPID=True), "hostPID"),
        (lambda: sandbox(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "node's files"),
        (
            lambda: sandbox(
                volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]
            ),
            "service account's token",
        ),
        (lambda: sandbox(securityContext={}), "seccompProfile"),
        (
            lambda: sandbox(
                securityContext={
                    "seccompProfile": {"type": "RuntimeDefault"},
                    "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "1 2"}],
                }
            ),
            "sysctls",
        ),
        (_security(allowPrivilegeEscalation=True), "allowPrivilegeEscalation"),
        (_security(capabilities={"drop": []}), "capabilities"),
        (_security(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]}), "capabilities"),
        (lambda: sandbox(container={"ports": [{"containerPort": 80, "hostPort": 80}]}), "hostPort"),
        (lambda: sandbox(container={"resources": {"limits": {"memory": "1Gi"}}}), "limits of cpu and memory"),
        (
            lambda: sandbox(initContainers=[{"name": "init", "image": "i"}]),
            "allowPrivilegeEscalation",
        ),
    ],
)
def test_a_sandbox_that_could_reach_out_is_refused_even_from_the_operator(
    policies: Cluster, make: Callable[[], Object], words: str
) -> None:
    assert words in refusal(policies, make(), OPERATOR)


def test_a_restricted_sandbox_is_accepted(policies: Cluster) -> None:
    assert refusal(policies, sandbox(), OPERATOR) == ""


@pytest.mark.parametrize(
    "mcp",
    [
        {},
        {"kind": "Archipelago"},
        {"kind": "Sidecars", "sidecars": [{"name": "crm", "image": "crm:1", "port": 9000}]},
    ],
    ids=["Runtime", "Archipelago", "Sidecars"],
)
def test_the_brokers_own_sandboxes_are_accepted(policies: Cluster, mcp: Object) -> None:
    spec = {"image": "office:1", "mcp": mcp, "populate": [{"image": "files:1"}]}
    kind = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "WorldImage"}
    world = WorldImage.model_validate({**kind, "metadata": {"name": "office", "namespace": "team-a"}, "spec": spec})
    plan = SandboxPlan(
        config=SandboxesConfig(), public_key="key", lifetime_seconds=60, runtime_class=None, has_image_volumes=False
    )
    made = named(sandbox_pod(world, "uid", "office@sha256:" + "0" * 64, plan), "office-1")
    assert refusal(policies, {**made, "metadata": {**made["metadata"], "namespace": "team-a"}}, OPERATOR) == ""
