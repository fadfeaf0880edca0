"""The Job that inspects a world: it claims the world's sandboxes from the broker, as the trials of a run do."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from seatrial_api.inspection_request import INSPECTION_VARIABLE, INVALID_EXIT_CODE, REPORT_NAME, InspectionRequest
from seatrial_api.pods import ROLE_LABEL, SCRATCH_MOUNT, Role
from seatrial_api.rules import stored_form
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.world_image import Inspection, WorldImage, WorldImageSpec
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.broker_access import access_env, access_volume
from seatrial_operator.manifests.names import MANAGED_BY, Manifest, owner_reference
from seatrial_operator.manifests.pod_template import merge
from seatrial_operator.manifests.pods import NOT_DISRUPTED, UNPRIVILEGED, env_value, pod_settings, s3_keys
from seatrial_operator.manifests.storage import Volume, base_dir, run_volumes

INSPECTS_LABEL = "seatrial.dev/inspects"
"""Name of the WorldImage that a Job inspects."""
REVISION_ANNOTATION = "seatrial.dev/inspected-revision"
"""On such a Job: tells what it inspects."""
CONTAINER = "inspection"

_RETRIES = 2
"""For a node that is lost, or a broker that does not answer; tasks that cannot be used are not tried again."""
_IRRELEVANT = ("image", "pullSecret", "prePull")
"""Fields that say nothing about what an inspection finds; the image's digest stands for the image."""
_REVISION_CHARS, _NAME_CHARS = 8, 46


def inspected_revision(world: str, spec: WorldImageSpec, digest: str) -> str:
    """What tells one thing to inspect from another: the image by digest, tools, and tasks."""
    form = {name: value for name, value in stored_form(spec).items() if name not in _IRRELEVANT}
    return sha256(json.dumps([world, digest, form], sort_keys=True).encode()).hexdigest()[:_REVISION_CHARS]


def inspection_job_name(world: str, revision: str) -> str:
    """Name of the Job of a revision."""
    return f"{world[:_NAME_CHARS].rstrip('-.')}-inspect-{revision}"


def report_place(world: WorldImage, revision: str, config: OperatorConfig) -> str:
    """Where the report of a revision lies, for a person: in the operator's default storage, else in the Job's log."""
    storage, below = config.storage or StorageSpec(), _below(world, revision)
    if storage.s3:
        return f"{storage.s3.below(below).uri}/{REPORT_NAME}.md"
    if storage.pvc:
        return f"{base_dir(storage) / below / REPORT_NAME}.md"
    namespace = world.metadata.namespace or "default"
    return f"kubectl -n {namespace} logs job/{inspection_job_name(world.metadata.name, revision)}"


def inspection_job(
    world: WorldImage, uid: str, inspection: Inspection, revision: str, config: OperatorConfig
) -> Manifest:
    """The Job.

    Args:
        world: The world.
        uid: Its `metadata.uid`.
        inspection: What it must prove.
        revision: Tells what is inspected.
        config: The operator's settings.

    Raises:
        PodTemplateError: if the settings' podTemplate cannot be merged.
    """
    name, request = world.metadata.name, _request(world, inspection, revision, config)
    labels = {**MANAGED_BY, INSPECTS_LABEL: name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": inspection_job_name(name, revision),
            **({"namespace": world.metadata.namespace} if world.metadata.namespace else {}),
            "labels": labels,
            "annotations": {REVISION_ANNOTATION: revision},
            "ownerReferences": [owner_reference("WorldImage", name, uid)],
        },
        "spec": {
            "backoffLimit": _RETRIES,
            "activeDeadlineSeconds": config.inspections.deadline_seconds,
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": merge(_template(labels, request, config), config.inspections.pod_template),
        },
    }


def _template(labels: Mapping[str, str], request: InspectionRequest, config: OperatorConfig) -> Manifest:
    return {
        "metadata": {
            "labels": {**labels, ROLE_LABEL: Role.AGENTS.value},  # what admits to broker and sandboxes
            "annotations": dict(NOT_DISRUPTED),
        },
        "spec": _pod(request, config),
    }


def _below(world: WorldImage, revision: str) -> str:
    return f"inspections/{world.metadata.name}-{revision}"


def _request(world: WorldImage, inspection: Inspection, revision: str, config: OperatorConfig) -> InspectionRequest:
    storage, below = config.storage or StorageSpec(), _below(world, revision)
    base = Path(base_dir(storage) if storage.pvc else SCRATCH_MOUNT)
    return InspectionRequest(
        world=world.metadata.name,
        inspection=inspection,
        trials=config.inspections.trials,
        base_dir=base,
        report_dir=base / below if storage.pvc else None,
        kept_in=storage.s3.below(below) if storage.s3 else None,
    )


def _pod(request: InspectionRequest, config: OperatorConfig) -> Manifest:
    storage = config.storage or StorageSpec()
    volumes = [*run_volumes(request.inspection, storage), access_volume()]
    account = f"inspection-of-{request.world}"
    asked = request.model_dump_json(by_alias=True, exclude_none=True)
    env = [
        env_value("HOME", str(SCRATCH_MOUNT)),
        env_value(INSPECTION_VARIABLE, asked),
        *access_env(account, config),
        *s3_keys(request.inspection, storage),
    ]
    return {
        **pod_settings(config),
        "containers": [
            {
                "name": CONTAINER,
                "image": config.images.ray_cpu,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "seatrial_rollout.inspection"],
                "env": env,
                "resources": config.inspections.resources.model_dump(exclude={"claims"}),
                "volumeMounts": _mounts(volumes),
                "securityContext": dict(UNPRIVILEGED),
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": [volume.manifest for volume in volumes],
    }


def _mounts(volumes: Iterable[Volume]) -> list[Manifest]:
    return [mount for volume in volumes for mount in volume.mount_manifests]


def _failure_rules() -> list[Manifest]:
    exit_codes = {"containerName": CONTAINER, "operator": "In", "values": [INVALID_EXIT_CODE]}
    return [
        {"action": "FailJob", "onExitCodes": exit_codes},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
