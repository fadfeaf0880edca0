"""What a launcher would make: processes on this machine, or the operator's objects in a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seatrial_api.playbook import Segment
from seatrial_api.rlrun import RLRun
from seatrial_api.warm_sandboxes import sandbox_pools
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.names import Manifest, job_name
from seatrial_operator.manifests.pod_template import PodTemplateError
from seatrial_operator.manifests.pool import rollout_pool
from seatrial_operator.manifests.rayjob import ray_job
from seatrial_operator.manifests.secret import driver_request, request_secret

_NO_UID = "00000000"
"""The API server gives a run its own when it is applied."""


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An object, or a process, that the launcher would make."""

    kind: str
    name: str
    when: str
    """Stages during which it is there."""
    detail: str


def cluster_objects(run: RLRun, segments: Sequence[Segment]) -> Iterator[PlannedObject]:
    """What the operator's own builders make, under its default settings."""
    spec, config = run.spec, OperatorConfig()
    pool = rollout_pool(run, _NO_UID)
    engines = spec.rollout.engines
    device = f"of {engines.tensor_parallel} GPUs" if spec.topology.gpus_per_node else "on CPUs"
    worlds = ", ".join(one.world for one in sandbox_pools(spec)) or "none warm"
    yield _planned(pool, "whole run", f"{engines.replicas} engines {device}; worlds: {worlds}")
    for segment in segments:
        during = ", ".join(segment.stages)
        secret = request_secret(run, _NO_UID, segment, 0, driver_request(run, _NO_UID, segment, config), "")
        yield _planned(secret, during, "the driver's request and token")
        try:
            job = ray_job(run, _NO_UID, segment, 0, config)
        except PodTemplateError:  # told among the refusals
            yield PlannedObject(
                "RayJob", job_name(run.metadata.name, segment.index, 0), during, "not with this podTemplate"
            )
        else:
            yield _planned(job, during, _groups(job["spec"]["rayClusterSpec"]))
    if spec.storage.pvc is not None:
        yield PlannedObject("PersistentVolumeClaim", spec.storage.pvc.claim, "whole run", "used, not made: run storage")
    if spec.storage.s3 is not None:
        yield PlannedObject("S3 prefix", spec.storage.s3.uri, "whole run", "used, not made: run storage")


def _planned(manifest: Manifest, when: str, detail: str) -> PlannedObject:
    return PlannedObject(manifest["kind"], manifest["metadata"]["name"], when, detail)


def _groups(cluster: Manifest) -> str:
    """Pods of a RayCluster: `head 1; rollout 4 x 8 GPUs; agents 1`."""
    workers = []
    for group in cluster["workerGroupSpecs"]:
        gpus = int(group["rayStartParams"]["num-gpus"])
        workers.append(f"{group['groupName']} {group['replicas']}" + (f" x {gpus} GPUs" if gpus else ""))
    return "; ".join(["head 1", *workers])


def processes(run: RLRun) -> Iterator[PlannedObject]:
    """What the local launcher starts."""
    spec = run.spec
    engines, hosts = spec.rollout.engines, spec.topology.agents.hosts_per_replica * spec.topology.agents.replicas
    device = "on CPUs" if spec.topology.gpus_per_node == 0 else f"on {engines.tensor_parallel} GPUs each"
    yield PlannedObject("folder", f"{spec.storage.path or 'runs'}/{run.metadata.name}", "kept", "run storage")
    yield PlannedObject("driver", "1 process", "whole run", "stages, scheduler, progress and metrics on 127.0.0.1")
    yield PlannedObject("engine", f"{engines.replicas} vLLM", "whole run", device)
    yield PlannedObject(
        "trial host", f"{hosts} processes", "whole run", f"trials in sandboxes: {spec.sandbox.provider}"
    )
    if spec.judge is not None:
        keys = ", ".join(sorted({key.variable for provider in spec.judge.providers for key in provider.keys}))
        yield PlannedObject("judge", "1 gateway", "whole run", f"model {spec.judge.model}; reads {keys}")
    trained = [stage.name for stage in spec.stages if stage.train or stage.overfit or stage.ablate]
    if trained:
        yield PlannedObject("policy", f"{spec.trainer.ranks} ranks", ", ".join(trained), spec.trainer.backend)
