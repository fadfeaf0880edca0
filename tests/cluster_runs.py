"""Runs on a test cluster: applying them, waiting for them, looking at what belongs to them."""

import json
import uuid
from typing import Any

from hack.cluster import Cluster
from seatrial_api.stage_report import StageResult
from seatrial_operator.plan.observed import RESUME_ANNOTATION
from tests.manifests import run_manifest
from tests.ray_stand_in import RayStandIn

NAMESPACE = "team"
RUN: dict[str, Any] = {
    "metadata__namespace": NAMESPACE,
    "spec__sandbox": {"provider": "local"},
    "spec__storage": {"pvc": {"claim": "runs"}},
    "spec__async__weightSync": {"method": "gloo"},
    "spec__topology": {"nodes": 2, "gpusPerNode": 8},
}


def claim(name: str) -> list[dict[str, Any]]:
    """A PersistentVolumeClaim with a volume that no one mounts."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": "none"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{NAMESPACE}-{name}"},
        "spec": {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}},
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{NAMESPACE}-{name}"},
    }
    return [volume, wanted]


def start(
    cluster: Cluster,
    ray: RayStandIn,
    *,
    results: dict[str, StageResult] | None = None,
    held: bool = False,
    **changes: Any,
) -> str:
    """Apply a run under a new name; `held`, its driver stays in the first stage."""
    name = f"run-{uuid.uuid4().hex[:6]}"
    ray.results[name] = results or {}
    if held:
        ray.held.add(name)
    cluster.apply(run_manifest(**(RUN | changes | {"metadata__name": name})))
    return name


def wait(cluster: Cluster, name: str, path: str, value: str, seconds: int = 180) -> None:
    cluster.kubectl(
        "wait", f"--for=jsonpath={{{path}}}={value}", f"--timeout={seconds}s", f"--namespace={NAMESPACE}", f"rl/{name}"
    )


def get(cluster: Cluster, *what: str, namespace: str = NAMESPACE) -> Any:
    """Objects, as JSON."""
    return json.loads(cluster.kubectl("get", *what, f"--namespace={namespace}", "--output=json"))


def belongings(cluster: Cluster, name: str) -> list[str]:
    """What there is of a run besides itself, events aside."""
    kinds = "rayjobs,rayclusters,pods,secrets,services,rolloutpools"
    listed = cluster.kubectl(
        "get", kinds, f"--namespace={NAMESPACE}", f"--selector=seatrial.dev/run={name}", "--output=name"
    )
    return sorted(listed.split())


def patch(cluster: Cluster, name: str, spec: dict[str, Any]) -> None:
    body = json.dumps({"spec": spec})
    cluster.kubectl("patch", f"rl/{name}", f"--namespace={NAMESPACE}", "--type=merge", f"--patch={body}")


def ask_to_resume(cluster: Cluster, name: str) -> None:
    cluster.kubectl("annotate", f"rl/{name}", f"--namespace={NAMESPACE}", "--overwrite", f"{RESUME_ANNOTATION}=now")


def conditions(cluster: Cluster, name: str) -> dict[str, tuple[str, str]]:
    """Reason and message of each condition, the reason with the status before it."""
    found = get(cluster, f"rl/{name}")["status"]["conditions"]
    return {one["type"]: (f"{one['status']} {one['reason']}", one["message"]) for one in found}


def attempts(ray: RayStandIn, name: str) -> list[str]:
    """Attempts to which a driver was submitted."""
    return [job.rpartition("-")[0].removeprefix(f"{name}-") for job in ray.submitted if job.startswith(name)]
