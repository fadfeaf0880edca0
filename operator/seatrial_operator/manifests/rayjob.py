"""The RayJob of one attempt at a segment: KubeRay makes the cluster, submits the driver, and shuts the cluster down."""

from collections.abc import Sequence

from seatrial_api.ceilings import split_nodes
from seatrial_api.playbook import Nodes, Segment
from seatrial_api.pods import DRIVER_PORT, REQUEST_MOUNT, Role
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.spec.topology import Scheduling
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests import groups
from seatrial_operator.manifests.broker_access import broker_env, broker_volumes
from seatrial_operator.manifests.names import Manifest, attempt_labels, job_name, owned_by_run
from seatrial_operator.manifests.pods import (
    SMALL_OBJECT_STORE_BYTES,
    PodPlan,
    env_secret,
    env_value,
    head_ports,
    s3_keys,
)
from seatrial_operator.manifests.storage import (
    base_dir,
    pod_inputs,
    request_volume,
    run_folder,
    run_volumes,
    storage_of,
)

_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
_RAY_SCHEDULER = "ray.io/scheduler-name"
_RAY_PRIORITY = "ray.io/priority-class-name"
_VOLCANO_QUEUE = "volcano.sh/queue-name"


def ray_job(run: RLRun, uid: str, segment: Segment, attempt: int, config: OperatorConfig) -> Manifest:
    """The RayJob. It is created once and never changed but for `spec.suspend`, which is Kueue's alone.

    Args:
        run: The run.
        uid: Its `metadata.uid`.
        segment: The stages to run.
        attempt: How often the segment was started before.
        config: The operator's settings.

    Raises:
        PodTemplateError: if a podTemplate cannot be merged.
    """
    name = job_name(run.metadata.name, segment.index, attempt)
    labels = attempt_labels(run, segment, attempt)
    folder = run_folder(run, uid, storage_of(run.spec, config))
    scheduling = run.spec.topology.scheduling
    head, *workers = role_plans(run, segment, attempt, config)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": owned_by_run(run, uid, name, {**labels, **_queue_labels(scheduling)}),
        "spec": {
            "entrypoint": f"python -m seatrial_trainer.driver {folder} --request {REQUEST_MOUNT}/run.json",
            "submissionMode": "HTTPMode",  # needs no submitter pod, which a gang scheduler would have to know of
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 0,  # the next attempt is ours to make: it goes on from a checkpoint
            **({"suspend": True} if scheduling.kueue else {}),
            "rayClusterSpec": groups.cluster_spec(
                groups.head_group(head, config),
                [
                    groups.worker_group(plan, replicas, config, also_as=_also_as(plan.role, run.spec))
                    for plan, replicas in zip(workers, pod_counts(run.spec, segment).values(), strict=True)
                ],
                config,
            ),
        },
    }


def pod_counts(spec: RLRunSpec, segment: Segment) -> dict[Role, int]:
    """Worker pods by role that a segment's cluster has and its driver waits for."""
    split = split_nodes(spec.topology)
    trains = segment.nodes is Nodes.ALL and not split.is_shared
    return {
        Role.ROLLOUT: split.inference,
        **({Role.TRAIN: split.train} if trains else {}),
        Role.AGENTS: spec.topology.agents.replicas,
    }


def role_plans(run: RLRun, segment: Segment, attempt: int, config: OperatorConfig) -> list[PodPlan]:
    """The head's pods, then those of every worker role of a segment, in the order of `pod_counts`."""
    spec, topology = run.spec, run.spec.topology
    storage, labels = storage_of(spec, config), attempt_labels(run, segment, attempt)
    volumes, env, keys = run_volumes(spec, storage), _env(storage), s3_keys(spec, storage)
    secret = job_name(run.metadata.name, segment.index, attempt)
    inputs = pod_inputs(spec, storage)
    batch_store = None if topology.gpus_per_node else SMALL_OBJECT_STORE_BYTES
    head = PodPlan(
        Role.HEAD,
        topology.head,
        labels,
        object_store_bytes=batch_store,
        env=[*env, *keys, *_driver_env(spec, secret)],
        volumes=[*volumes, request_volume(secret)],
        inputs=inputs,
        ports=head_ports(),
    )
    on_nodes = {Role.ROLLOUT: topology.rollout, Role.TRAIN: topology.train}
    env_on_nodes = [*env, *keys] if storage.s3 else env  # with a volume, the driver brings what is in S3
    workers = [
        PodPlan(
            role,
            on_nodes.get(role, topology.agents),
            labels,
            gpus=topology.gpus_per_node if role in on_nodes else 0,
            object_store_bytes=batch_store if role in on_nodes else SMALL_OBJECT_STORE_BYTES,
            env=[*env, *broker_env(run, config)] if role is Role.AGENTS else env_on_nodes,
            volumes=[*volumes, *broker_volumes(run)] if role is Role.AGENTS else volumes,
            inputs=inputs,
            inputs_env=keys,
        )
        for role in pod_counts(spec, segment)
    ]
    return [head, *workers]


def _also_as(role: Role, spec: RLRunSpec) -> Sequence[Role]:
    """The one node of a run without more serves engines and trainer."""
    return (Role.TRAIN,) if role is Role.ROLLOUT and split_nodes(spec.topology).is_shared else ()


def _env(storage: StorageSpec) -> list[Manifest]:
    """Environment of every pod: what is downloaded, or found out about a model, is kept for all."""
    caches = {"HF_HOME": "huggingface", "VLLM_CACHE_ROOT": "vllm"} if storage.pvc else {}
    return [env_value(name, str(base_dir(storage) / ".cache" / folder)) for name, folder in caches.items()]


def _driver_env(spec: RLRunSpec, secret: str) -> list[Manifest]:
    wandb = spec.tracking.wandb
    judge_keys = [key for provider in (spec.judge.providers if spec.judge else ()) for key in provider.keys]
    return [
        env_value("SEATRIAL_DRIVER_HOST", "0.0.0.0"),  # noqa: S104  NetworkPolicy and a token confine it
        env_value("SEATRIAL_DRIVER_PORT", str(DRIVER_PORT)),
        env_secret("SEATRIAL_DRIVER_TOKEN", secret, "token"),
        env_value("SEATRIAL_LOG_COPY", "/proc/1/fd/2"),  # Ray keeps a job's output from `kubectl logs`
        *([env_secret("WANDB_API_KEY", wandb.secret, "apiKey")] if wandb and wandb.secret else []),
        *(env_secret(key.variable, key.secret, "apiKey") for key in judge_keys if key.secret),
    ]


def _queue_labels(scheduling: Scheduling) -> dict[str, str]:
    """What Kueue, or KubeRay's batch scheduler Volcano, looks for on the RayJob."""
    labels: dict[str, str] = {}
    if kueue := scheduling.kueue:
        labels[_KUEUE_QUEUE] = kueue.queue
        if kueue.priority_class:
            labels[_KUEUE_PRIORITY] = kueue.priority_class
    if volcano := scheduling.volcano:
        labels |= {_RAY_SCHEDULER: "volcano", _VOLCANO_QUEUE: volcano.queue}
        if volcano.priority_class:
            labels[_RAY_PRIORITY] = volcano.priority_class
    return labels
