"""Objects of a RolloutPool on its own: a RayCluster of engines, the Service before it, a Secret with its token."""

import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from seatrial_api.pods import (
    POOL_LABEL,
    PVC_MOUNT,
    REQUEST_MOUNT,
    ROLE_LABEL,
    RUN_LABEL,
    SCRATCH_MOUNT,
    Role,
)
from seatrial_api.rollout_pool import RolloutPool, RolloutPoolSpec
from seatrial_api.rules import stored_form
from seatrial_api.serving import SERVING_PORT, SERVING_PORT_NAME, TOKEN_VARIABLE, ServingRequest
from seatrial_api.spec.model import ModelSpec
from seatrial_api.spec.topology import RoleSpec
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.groups import cluster_spec, head_group, worker_group
from seatrial_operator.manifests.names import MANAGED_BY, Manifest, owner_reference
from seatrial_operator.manifests.pods import PodPlan, env_secret, gpus_asked_for, head_ports
from seatrial_operator.manifests.storage import OWN_PREFIX, Volume

SPEC_ANNOTATION = "seatrial.dev/spec"
"""On a pool's RayCluster: tells the spec that it was made from, the number of engines aside."""
REQUEST_KEY = "pool.json"
TOKEN_KEY = "token"  # noqa: S105  a key, not a token

_START_RAY = "ulimit -n 65536; $KUBERAY_GEN_RAY_START_CMD &"
"""KubeRay leaves what it would have run in this variable."""
_SERVE = f"exec python -m seatrial_rollout.serving --request {REQUEST_MOUNT}/{REQUEST_KEY}"
_DIGEST_CHARS = 16


def serving_secret_name(pool: str) -> str:
    """Name of the Secret of a pool."""
    return f"{pool}-serving"


def pool_labels(pool: str) -> dict[str, str]:
    """Labels of everything that belongs to a pool on its own."""
    return {**MANAGED_BY, POOL_LABEL: pool}


def engine_selector(pool: str) -> str:
    """Label selector of the pods that run engines, one each."""
    return f"{POOL_LABEL}={pool},{ROLE_LABEL}={Role.ROLLOUT.value}"


def run_engine_selector(run: str) -> str:
    """Label selector of the pods that run the engines of a run's pool."""
    return f"{RUN_LABEL}={run},{ROLE_LABEL}={Role.ROLLOUT.value}"


def endpoint_url(pool: str, namespace: str) -> str:
    """OpenAI-compatible base URL inside the cluster."""
    return f"http://{pool}.{namespace}.svc:{SERVING_PORT}/v1"


def spec_digest(spec: RolloutPoolSpec) -> str:
    """Tells what engines are made of: a pool whose digest changes is made anew, one that is scaled is not."""
    form = stored_form(spec)
    made_of = {"model": form["model"], "role": form["role"], "engines": {**form["engines"], "replicas": 0}}
    return sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:_DIGEST_CHARS]


def gpus_of(spec: RolloutPoolSpec) -> int:
    """GPUs of each pod: those that the role's resources ask for."""
    return max((int(count) for count in gpus_asked_for(spec.role.resources).values()), default=0)


def pool_cluster(pool: RolloutPool, uid: str, model: ModelSpec, config: OperatorConfig) -> Manifest:
    """The RayCluster: a head that serves, and as many pods with one engine each as there are replicas.

    Args:
        pool: The pool.
        uid: Its `metadata.uid`.
        model: What it serves.
        config: The operator's settings.

    Raises:
        PodTemplateError: if the podTemplate cannot be merged.
    """
    name, spec = pool.metadata.name, pool.spec
    head, engines = pool_plans(pool, model)
    metadata = _metadata(pool, uid, name) | {"annotations": {SPEC_ANNOTATION: spec_digest(spec)}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": cluster_spec(
            _serving(head_group(head, config)),
            [worker_group(engines, spec.engines.replicas, config)],
            config,
        ),
    }


def pool_plans(pool: RolloutPool, model: ModelSpec) -> tuple[PodPlan, PodPlan]:
    """The head's pod, which serves, and the engines' pods."""
    name, spec = pool.metadata.name, pool.spec
    labels, volumes = pool_labels(name), _volumes(model)
    secret = serving_secret_name(name)
    head = PodPlan(
        Role.HEAD,
        RoleSpec(image=spec.role.image, pod_template=spec.role.pod_template),
        labels,
        env=[env_secret(TOKEN_VARIABLE, secret, TOKEN_KEY)],
        volumes=[*volumes, _request_volume(secret)],
        ports={**head_ports(), SERVING_PORT_NAME: SERVING_PORT},
    )
    return head, PodPlan(Role.ROLLOUT, spec.role, labels, gpus=gpus_of(spec), volumes=volumes)


def scaled(cluster_spec_now: Manifest, replicas: int) -> Manifest:
    """The spec of a pool's RayCluster with another number of engines and all else as it is."""
    size = {"replicas": replicas, "minReplicas": replicas, "maxReplicas": replicas}
    groups = [{**group, **size} for group in cluster_spec_now["workerGroupSpecs"]]
    return {**cluster_spec_now, "workerGroupSpecs": groups}


def pool_service(pool: RolloutPool, uid: str) -> Manifest:
    """The Service of the pool's name: what clients talk to."""
    port = {"name": SERVING_PORT_NAME, "port": SERVING_PORT, "targetPort": SERVING_PORT_NAME, "appProtocol": "http"}
    selector = {POOL_LABEL: pool.metadata.name, ROLE_LABEL: Role.HEAD.value}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pool, uid, pool.metadata.name),
        "spec": {"type": "ClusterIP", "selector": selector, "ports": [port]},
    }


def pool_secret(pool: RolloutPool, uid: str, model: ModelSpec, token: str) -> Manifest:
    """The Secret with what to serve, and the token of those who may ask; made anew with the RayCluster only.

    Args:
        pool: The pool.
        uid: Its `metadata.uid`.
        model: What it serves.
        token: Its token.
    """
    name = pool.metadata.name
    request = ServingRequest(pool=name, model=model, engines=pool.spec.engines, base_dir=Path("/"))
    data = {REQUEST_KEY: request.model_dump_json(by_alias=True, exclude_none=True), TOKEN_KEY: token}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(pool, uid, serving_secret_name(name)),
        "type": "Opaque",
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }


def _serving(head: Manifest) -> Manifest:
    """The head group with the serving process as the main one: when it ends, KubeRay makes another pod."""
    template = head["template"]
    ray, *others = template["spec"]["containers"]
    started = ray | {"command": ["/bin/bash", "-c"], "args": [f"{_START_RAY} {_SERVE}"]}
    annotations = template["metadata"].get("annotations", {}) | {"ray.io/overwrite-container-cmd": "true"}
    return {
        **head,
        "template": {
            "metadata": {**template["metadata"], "annotations": annotations},
            "spec": {**template["spec"], "containers": [started, *others]},
        },
    }


def _volumes(model: ModelSpec) -> list[Volume]:
    volumes = [Volume(f"{OWN_PREFIX}scratch", {"emptyDir": {}}, (SCRATCH_MOUNT,))]
    if pvc := model.source.pvc:
        claim = {"persistentVolumeClaim": {"claimName": pvc.claim, "readOnly": True}}
        volumes.append(Volume(f"{OWN_PREFIX}model", claim, (PVC_MOUNT / pvc.claim,), is_read_only=True))
    return volumes


def _request_volume(secret: str) -> Volume:
    source = {"secret": {"secretName": secret, "items": [{"key": REQUEST_KEY, "path": REQUEST_KEY}]}}
    return Volume(f"{OWN_PREFIX}request", source, (REQUEST_MOUNT,), is_read_only=True)


def _metadata(pool: RolloutPool, uid: str, name: str) -> Manifest:
    namespace = {"namespace": pool.metadata.namespace} if pool.metadata.namespace else {}
    owners = [owner_reference("RolloutPool", pool.metadata.name, uid)]
    return {"name": name, **namespace, "labels": pool_labels(pool.metadata.name), "ownerReferences": owners}
