"""The pods that run Ray: what we set in them, and the user's podTemplate on top."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from seatrial_api.base import ApiModel
from seatrial_api.driver_request import PodInputs
from seatrial_api.pods import (
    DRIVER_PORT,
    DRIVER_PORT_NAME,
    INPUTS_VARIABLE,
    RAY_METRICS_PORT_NAME,
    ROLE_LABEL,
    SCRATCH_MOUNT,
    Role,
)
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.spec.pod_template import RAY_CONTAINER
from seatrial_api.spec.topology import Resources, RoleSpec
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.names import Manifest
from seatrial_operator.manifests.pod_template import PodTemplateError, merge
from seatrial_operator.manifests.storage import Volume, s3_source

GPU_RESOURCE = "nvidia.com/gpu"
"""Kubernetes' name of the GPUs that pods ask for where a role's resources name no other."""

SMALL_OBJECT_STORE_BYTES = 256 << 20
"""Enough where batches are small, and for agents, whose trajectories travel by value."""

_SHM_VOLUME = "shm"
"""Unlike our other volumes this one may be replaced: a podTemplate says how large it is."""
_SMALL_SHM = "1Gi"
_INPUTS_CONTAINER = "seatrial-inputs"
_USER = 1000
"""User and group of the pods; the images have both."""
_GRACE_SECONDS = 30
"""Kubernetes' own default. Checkpoints are not written in it: a driver that is to end is told so over HTTP before."""
NOT_DISRUPTED = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""A run is one gang: a node that is emptied to save money costs all the others their work since the checkpoint."""

UNPRIVILEGED: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security context of every container of ours."""

_DEFAULT_REQUESTS = {
    Role.HEAD: {"cpu": "500m", "memory": "2Gi"},
    Role.ROLLOUT: {"cpu": "1", "memory": "4Gi"},
    Role.TRAIN: {"cpu": "1", "memory": "4Gi"},
    Role.AGENTS: {"cpu": "500m", "memory": "2Gi"},
}
"""Where a role's resources are empty: a pod that asks for nothing is the first to be evicted."""

_RAY_PORTS = {"gcs-server": 6379, "dashboard": 8265}
"""Of the head. KubeRay's Service carries the head's named ports, its own defaults only if there are none."""
_RAY_METRICS_PORT = 8080
_RAY_AGENT_PORT = 52365


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One kind of Ray pod."""

    role: Role
    spec: RoleSpec
    """What the user wants of it."""
    labels: dict[str, str]
    """Labels besides the role's."""
    gpus: int = 0
    """GPUs of each pod."""
    object_store_bytes: int | None = SMALL_OBJECT_STORE_BYTES
    """Size of Ray's object store in shared memory; Ray takes 30 % of the pod's memory if empty."""
    env: Sequence[Manifest] = ()
    """Environment besides what every pod has."""
    volumes: Sequence[Volume] = ()
    inputs: PodInputs | None = None
    """What a pod brings for itself before Ray starts."""
    inputs_env: Sequence[Manifest] = ()
    """Environment for that besides the pod's own."""
    ports: dict[str, int] = field(default_factory=dict)
    """Ports besides what every pod has, by name."""


def env_value(name: str, value: str) -> Manifest:
    """An environment variable."""
    return {"name": name, "value": value}


def env_secret(name: str, secret: str, key: str) -> Manifest:
    """An environment variable from a Secret in the pod's namespace."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def s3_keys(spec: ApiModel, storage: StorageSpec) -> list[Manifest]:
    """Credentials for S3, for whoever reads or writes there; agents pods, where trials run, hold none while they do."""
    s3 = s3_source(spec, storage)
    if s3 is None or s3.secret is None:
        return []
    return [
        env_secret("AWS_ACCESS_KEY_ID", s3.secret, "accessKeyId"),
        env_secret("AWS_SECRET_ACCESS_KEY", s3.secret, "secretAccessKey"),
    ]


def head_ports() -> dict[str, int]:
    """Ports of a run's head besides those that every pod has."""
    return {**_RAY_PORTS, DRIVER_PORT_NAME: DRIVER_PORT}


def pod_template(plan: PodPlan, config: OperatorConfig) -> Manifest:
    """The PodTemplateSpec: ours with the user's merged in, the Ray container first, where KubeRay looks for it.

    Raises:
        PodTemplateError: if the user's cannot be merged.
    """
    merged = merge(base_template(plan, config), plan.spec.pod_template)
    containers = merged.get("spec", {}).get("containers", [])
    ray = [container for container in containers if container["name"] == RAY_CONTAINER]
    if not ray:
        raise PodTemplateError("spec.containers", f"the container {RAY_CONTAINER} must stay; remove what deletes it")
    merged["spec"]["containers"] = ray + [container for container in containers if container is not ray[0]]
    if plan.inputs:
        others = merged["spec"].get("initContainers", [])
        merged["spec"]["initContainers"] = [*others, _inputs_container(plan.inputs, plan.inputs_env, ray[0])]
    return merged


def base_template(plan: PodPlan, config: OperatorConfig) -> Manifest:
    """The PodTemplateSpec before the user's is merged in."""
    shm_size = {} if plan.object_store_bytes is None else {"sizeLimit": _SMALL_SHM}
    return {
        "metadata": {"labels": {**plan.labels, ROLE_LABEL: plan.role.value}, "annotations": dict(NOT_DISRUPTED)},
        "spec": {
            **pod_settings(config),  # a restarted container would rejoin with lost state; KubeRay makes a new pod
            "containers": [_ray_container(plan, config)],
            "volumes": [
                *(volume.manifest for volume in plan.volumes),
                {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", **shm_size}},
            ],
        },
    }


def pod_settings(config: OperatorConfig) -> Manifest:
    """What the spec of every pod of ours has besides containers and volumes."""
    secrets = [{"name": name} for name in config.image_pull_secrets]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,  # a run's pods hold no Kubernetes rights
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"imagePullSecrets": secrets} if secrets else {}),
    }


def gpus_asked_for(resources: Resources) -> dict[str, str]:
    """GPUs that a role's resources name, by Kubernetes' name for them."""
    return {name: count for name, count in {**resources.requests, **resources.limits}.items() if name.endswith("/gpu")}


def _inputs_container(inputs: PodInputs, env: Sequence[Manifest], ray: Manifest) -> Manifest:
    """Runs before Ray does and has what its container has: the user's proxies, certificates and tokens among it."""
    taken = ("image", "imagePullPolicy", "envFrom", "resources", "volumeMounts", "securityContext")
    ours = {variable["name"]: variable for variable in [*env, *ray["env"]]}  # what the user sets wins
    told = env_value(INPUTS_VARIABLE, inputs.model_dump_json(by_alias=True, exclude_none=True))
    return {
        "name": _INPUTS_CONTAINER,
        "command": ["python", "-m", "seatrial_rollout.trials.bring_inputs"],
        "env": [*copy.deepcopy([one for name, one in ours.items() if not name.startswith("SEATRIAL_")]), told],
        **{name: copy.deepcopy(ray[name]) for name in taken if name in ray},
    }


def _ray_container(plan: PodPlan, config: OperatorConfig) -> Manifest:
    default_image = config.images.ray_gpu if plan.gpus else config.images.ray_cpu
    mounts = [mount for volume in plan.volumes for mount in volume.mount_manifests]
    ports = {**plan.ports, RAY_METRICS_PORT_NAME: _RAY_METRICS_PORT}
    return {
        "name": RAY_CONTAINER,
        "image": plan.spec.image or default_image,
        "imagePullPolicy": "IfNotPresent",
        "env": [*_env(config), *plan.env],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "resources": _resources(plan),
        "volumeMounts": [*mounts, {"name": _SHM_VOLUME, "mountPath": "/dev/shm"}],  # noqa: S108  the pod's own
        "securityContext": dict(UNPRIVILEGED),
        "readinessProbe": _probe(period=5, failures=3),
        "livenessProbe": _probe(period=10, failures=60),  # a busy node starves its agent for minutes
    }


def _env(config: OperatorConfig) -> list[Manifest]:
    """Environment of every Ray container; with token authentication KubeRay adds mode and token by itself."""
    auth = [env_value("RAY_AUTH_MODE", "disabled")] if config.ray_auth == "disabled" else []
    return [
        *auth,
        env_value("RAY_USAGE_STATS_ENABLED", "0"),
        env_value("RAY_worker_niceness", "0"),  # trials and policy go before the engines, which are nice by themselves
        # By default Ray waits 30 s for a head that may be lost before it ends, and the next attempt for that.
        env_value("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"),
        env_value("HOME", str(SCRATCH_MOUNT)),
    ]


def _resources(plan: PodPlan) -> dict[str, Any]:
    """The user's, with a default where there is nothing, and the GPUs where the user does not bring them."""
    asked = plan.spec.resources
    gpus = gpus_asked_for(asked)
    requests, limits = dict(asked.requests), dict(asked.limits)
    if not {*requests, *limits} - gpus.keys():
        requests = {**_DEFAULT_REQUESTS[plan.role], **requests}
    if plan.gpus and not gpus and not asked.claims:
        limits[GPU_RESOURCE] = str(plan.gpus)
    claims = [claim.model_dump(exclude_none=True) for claim in asked.claims]
    return {
        "requests": requests,
        **({"limits": limits} if limits else {}),
        **({"claims": claims} if claims else {}),
    }


def _probe(*, period: int, failures: int) -> Manifest:
    """Ray's agent answers for its raylet, on the head for the control service as well. No image needs wget for it."""
    return {
        "httpGet": {"path": "/api/healthz", "port": _RAY_AGENT_PORT},
        "initialDelaySeconds": 5,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
