"""Groups of a RayCluster: the head, and workers of one role each."""

import json
from collections.abc import Sequence

from seatrial_api.pods import Role
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.names import Manifest
from seatrial_operator.manifests.pods import PodPlan, pod_template


def cluster_spec(head: Manifest, workers: Sequence[Manifest], config: OperatorConfig) -> Manifest:
    """The RayClusterSpec of a head group and worker groups."""
    auth = {"authOptions": {"mode": "token"}} if config.ray_auth == "token" else {}
    return {"rayVersion": config.ray_version, **auth, "headGroupSpec": head, "workerGroupSpecs": list(workers)}


def head_group(plan: PodPlan, config: OperatorConfig) -> Manifest:
    """The head group: it runs the driver and offers nothing to actors.

    Raises:
        PodTemplateError: if the user's podTemplate cannot be merged.
    """
    params = {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"}  # noqa: S104  confined by NetworkPolicy
    return {"rayStartParams": {**params, **_object_store(plan)}, "template": pod_template(plan, config)}


def worker_group(plan: PodPlan, replicas: int, config: OperatorConfig, *, also_as: Sequence[Role] = ()) -> Manifest:
    """A group of workers, named after its role. Its size is fixed: a run is one gang.

    Args:
        plan: Its pods.
        replicas: Number of them.
        config: The operator's settings.
        also_as: Roles that the pods serve besides their own.

    Raises:
        PodTemplateError: if the user's podTemplate cannot be merged.
    """
    offered = {role.ray_resource: 1 for role in (plan.role, *also_as)}
    params = {
        "num-gpus": str(plan.gpus),
        "resources": f"'{json.dumps(offered)}'",  # quoted for the shell that KubeRay starts Ray with
    }
    return {
        "groupName": plan.role.value,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "rayStartParams": {**params, **_object_store(plan)},
        "template": pod_template(plan, config),
    }


def _object_store(plan: PodPlan) -> dict[str, str]:
    return {} if plan.object_store_bytes is None else {"object-store-memory": str(plan.object_store_bytes)}
