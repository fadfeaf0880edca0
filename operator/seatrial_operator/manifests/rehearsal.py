"""What Kubernetes thinks of pods before there are any: those of a run, and those of a pool on its own.

A RayJob's schema says of its pod templates no more than the types of fields. A PodTemplate that is created in a dry run
is judged as a pod would be: names, references between volumes and mounts, quantities. No right to make pods is needed.
"""

import re
from collections.abc import Sequence

from seatrial_api.pods import Role
from seatrial_api.rlrun import RLRun
from seatrial_api.rollout_pool import RolloutPool
from seatrial_api.spec.model import ModelSpec
from seatrial_api.spec.topology import Resources, RoleSpec
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.checks import template_path, whole_run
from seatrial_operator.manifests.names import Manifest, owned_by_run, run_labels
from seatrial_operator.manifests.pods import pod_template
from seatrial_operator.manifests.rayjob import pod_counts, ray_job, role_plans
from seatrial_operator.manifests.serving import pool_cluster, pool_labels, pool_plans

POOL_TEMPLATE_PATH = "spec.role.podTemplate"
"""The field of a pool with the podTemplate of all its pods."""
_IN_CLUSTER = re.compile(
    r"(?<!\w)\.?spec\.(?:rayClusterSpec\.)?(?:headGroupSpec|workerGroupSpecs\[(?P<group>\d+)\])\.template\b"
)
_IN_ROLE = re.compile(r"podTemplate\.spec\.containers\[(?:0|name=\"ray\")\]\.(?=(?:image|resources)\b)")
"""Fields of the Ray container that are a role's own."""


def rehearsal(run: RLRun, uid: str, config: OperatorConfig, *, only_shaped: bool = False) -> dict[Role, Manifest]:
    """A PodTemplate of each role of a run, to be created in a dry run only.

    Args:
        run: The run.
        uid: Its `metadata.uid`.
        config: The operator's settings.
        only_shaped: Leave out roles of which the user says nothing: their pods are all ours.

    Raises:
        PodTemplateError: if a podTemplate cannot be merged.
    """
    return {
        plan.role: {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": owned_by_run(run, uid, f"{run.metadata.name}-{plan.role.value}", run_labels(run)),
            "template": pod_template(plan, config),
        }
        for plan in role_plans(run, whole_run(run), 0, config)
        if not only_shaped or _is_shaped(plan.spec)
    }


def rehearsed_job(run: RLRun, uid: str, config: OperatorConfig) -> Manifest:
    """A RayJob with every role of a run, to be created in a dry run only.

    Raises:
        PodTemplateError: if a podTemplate cannot be merged.
    """
    job = ray_job(run, uid, whole_run(run), 0, config)
    return {**job, "metadata": {**job["metadata"], "name": f"{run.metadata.name}-rehearsal"}}


def pool_rehearsal(pool: RolloutPool, model: ModelSpec, config: OperatorConfig) -> list[Manifest]:
    """PodTemplates of a pool on its own, to be created in a dry run only; none if the user says nothing of its pods.

    Raises:
        PodTemplateError: if the podTemplate cannot be merged.
    """
    name = pool.metadata.name
    return [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": f"{name}-{plan.role.value}", "labels": pool_labels(name)},
            "template": pod_template(plan, config),
        }
        for plan in pool_plans(pool, model)
        if _is_shaped(pool.spec.role)
    ]


def rehearsed_cluster(pool: RolloutPool, uid: str, model: ModelSpec, config: OperatorConfig) -> Manifest:
    """The RayCluster of a pool on its own, to be created in a dry run only, beside the one that may be there.

    Raises:
        PodTemplateError: if the podTemplate cannot be merged.
    """
    cluster = pool_cluster(pool, uid, model, config)
    return {**cluster, "metadata": {**cluster["metadata"], "name": f"{pool.metadata.name}-rehearsal"}}


def _is_shaped(spec: RoleSpec) -> bool:
    return bool(spec.image or spec.pod_template or spec.resources != Resources())


def blame_pod_template(message: str, path: str) -> str:
    """The API server's words about a rehearsed PodTemplate, with the user's own fields in them.

    Args:
        message: The words.
        path: The field that holds the podTemplate.
    """
    told = re.sub(r"(?<![\w.])\.?template\b(?=[.:\[])", path, message)
    told = re.sub(r"(?<=\bpodTemplate\.)(?=labels|annotations)", "metadata.", told)  # Kubernetes leaves it out there
    return _IN_ROLE.sub("", told)


def blame_ray_job(message: str, workers: Sequence[Role]) -> str:
    """The API server's words about a RayJob, with the run's own fields in them.

    Args:
        message: The words.
        workers: Roles of its worker groups, in order: the keys of `pod_counts`.
    """

    def field(found: re.Match[str]) -> str:
        group = found["group"]
        return template_path(Role.HEAD if group is None else workers[int(group)])

    return _IN_ROLE.sub("", _IN_CLUSTER.sub(field, message))


def blame_pool_cluster(message: str) -> str:
    """The API server's words about the RayCluster of a pool on its own, with the pool's own fields in them."""
    return _IN_ROLE.sub("", _IN_CLUSTER.sub(POOL_TEMPLATE_PATH, message))


def worker_roles(run: RLRun) -> list[Role]:
    """Roles of a run's worker groups, in order, in a segment that has them all."""
    return list(pod_counts(run.spec, whole_run(run)))
