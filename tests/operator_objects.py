"""One object of each of our kinds in the namespace `team-a`, such that the operator can act on it."""

from typing import Any

from tests.manifests import run_manifest
from tests.prometheus import free_port

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "runs", "namespace": "team-a"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
POOL = {
    "apiVersion": "seatrial.dev/v1alpha1",
    "kind": "RolloutPool",
    "metadata": {"name": "alone", "namespace": "team-a"},
    "spec": {"model": {"source": {"pvc": {"claim": "runs", "path": "model"}}, "contextLength": {"train": 4096}}},
}
WORLD = {
    "apiVersion": "seatrial.dev/v1alpha1",
    "kind": "WorldImage",
    "metadata": {"name": "office", "namespace": "team-a"},
    "spec": {"image": f"127.0.0.1:{free_port()}/office:1", "prePull": {}},
}


def small_run(name: str, namespace: str = "team-a") -> dict[str, Any]:
    """A run that the operator can start."""
    changes: dict[str, Any] = {
        "metadata__name": name,
        "metadata__namespace": namespace,
        "spec__sandbox": {"provider": "local"},
        "spec__storage": {"pvc": {"claim": "runs"}},
        "spec__async__weightSync": {"method": "gloo"},
        "spec__topology": {"nodes": 2, "gpusPerNode": 8},
    }
    return run_manifest(**changes)
