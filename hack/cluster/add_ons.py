"""What clusters of ours have besides Kubernetes: KubeRay's operator with its rights, and KWOK."""

from typing import Any

from hack.cluster.layout import BIN, SHARE, Layout
from hack.cluster.pki import KUBERAY
from hack.cluster.processes import Command

RAY_CRDS = SHARE / "kuberay"
RAY_ROLE = SHARE / "kuberay-role.yaml"
"""The ClusterRole `kuberay-operator`, as KubeRay's release has it."""
_KWOK_STAGES = SHARE / "kwok"
FAKE_NODE = "kwok.x-k8s.io/node"
"""Annotation of the nodes that KWOK plays; also the key of their taint."""


def kuberay(layout: Layout) -> Command:
    """KubeRay's operator as a process, unthrottled."""
    words = (
        str(BIN / "kuberay-operator"),
        f"--kubeconfig={layout.pki / 'kuberay.kubeconfig'}",
        "--enable-leader-election=false",
        "--metrics-addr=0",
        "--health-probe-bind-address=0",
        "--reconcile-concurrency=8",
        "--qps=500",
        "--burst=1000",
    )
    return Command("kuberay", words)


def ray_role_binding() -> dict[str, Any]:
    """Gives KubeRay's operator its role, and nothing else."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kuberay-operator"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "kuberay-operator"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": KUBERAY.user}],
    }


def kwok(layout: Layout) -> Command:
    """KWOK, which plays the nodes that ask for it: their pods become ready, complete and go away at once."""
    stages = ",".join(str(path) for path in sorted(_KWOK_STAGES.glob("*.yaml")))
    words = (
        str(BIN / "kwok"),
        f"--kubeconfig={layout.pki / 'admin.kubeconfig'}",
        f"--config={stages}",
        "--cidr=10.250.0.0/16",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE}=fake",
        "--node-lease-duration-seconds=40",
    )
    return Command("kwok", words)
