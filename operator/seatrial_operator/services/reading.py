"""Objects of the API server, read into what plans are made from."""

from collections.abc import Mapping
from datetime import datetime

from pydantic import ValidationError

from seatrial_api.kubernetes_object import ObjectMeta
from seatrial_api.pods import ATTEMPT_LABEL, ROLE_LABEL, RUN_LABEL, SEGMENT_LABEL
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.rules import COLLECT
from seatrial_api.status import RLRunStatus
from seatrial_operator.kube.resources import Object
from seatrial_operator.plan.observed import STAGES_ANNOTATION, JobSeen, PodSeen, RunObject

_CLUSTER_LABEL = "ray.io/cluster"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class UnreadableRunError(ValueError):
    """A run that this operator's models cannot hold: its definition in the cluster is of another version."""

    def __init__(self, item: Object, fields: str) -> None:
        self.item = item
        self.fields = fields
        super().__init__(fields)


def read_run(item: Object, known: RunObject | None = None) -> RunObject:
    """An RLRun.

    Args:
        item: The object.
        known: What was read of it before. A spec of the same generation is taken over, which spares the most of the
            work and, since objects that live long stay where they are, of the memory.

    Raises:
        UnreadableRunError: naming each field that does not fit.
    """
    metadata = item["metadata"]
    is_known = known is not None and (known.uid, known.generation) == (metadata["uid"], metadata["generation"])
    try:
        status = RLRunStatus.model_validate(item.get("status") or {})
        spec = known.spec if known and is_known else RLRunSpec.model_validate(item["spec"], context=COLLECT)
        run = RLRun.model_construct(
            api_version="seatrial.dev/v1alpha1",
            kind="RLRun",
            metadata=ObjectMeta(
                name=metadata["name"],
                namespace=metadata["namespace"],
                labels=metadata.get("labels") or {},
                annotations=_annotations(metadata),
            ),
            spec=spec,
            status=None,
        )
    except ValidationError as exc:
        fields = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise UnreadableRunError(item, fields) from exc
    return RunObject(
        run=run,
        uid=metadata["uid"],
        generation=metadata["generation"],
        resource_version=metadata["resourceVersion"],
        created_at=_moment(metadata["creationTimestamp"]),
        status=status,
        is_deleting="deletionTimestamp" in metadata,
    )


def read_job(item: Object, run_uid: str | None) -> JobSeen:
    """The RayJob of an attempt at the run of this uid."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    owners = {owner["uid"] for owner in metadata.get("ownerReferences") or []}
    return JobSeen(
        name=metadata["name"],
        segment=_number(labels, SEGMENT_LABEL),
        attempt=_number(labels, ATTEMPT_LABEL),
        stages=(metadata.get("annotations") or {}).get(STAGES_ANNOTATION, ""),
        cluster=status.get("rayClusterName") or None,
        state=status.get("jobDeploymentStatus") or "",
        message=": ".join(part for part in (status.get("reason"), status.get("message")) if part),
        is_suspended=bool(item["spec"].get("suspend")),
        is_deleting="deletionTimestamp" in metadata,
        is_ours=run_uid in owners,
    )


def read_pod(item: Object) -> PodSeen:
    """A pod of an attempt."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        segment=_number(labels, SEGMENT_LABEL),
        attempt=_number(labels, ATTEMPT_LABEL),
        role=labels.get(ROLE_LABEL, ""),
        cluster=labels.get(_CLUSTER_LABEL, ""),
        phase=status.get("phase") or "Pending",
        waits_for=_wait_of(status),
        is_deleting="deletionTimestamp" in metadata,
    )


def run_of(item: Object) -> str:
    """Name of the run that an object belongs to by its label."""
    return str((item["metadata"].get("labels") or {}).get(RUN_LABEL, ""))


def _wait_of(status: Mapping[str, object]) -> str:
    """Why a pod does not run: the scheduler's words, or the kubelet's about the first container that waits."""
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    for key in ("initContainerStatuses", "containerStatuses"):
        containers = status.get(key)
        for container in containers if isinstance(containers, list) else []:
            waiting = (container.get("state") or {}).get("waiting")
            if waiting and waiting.get("reason") not in {None, "PodInitializing", "ContainerCreating"}:
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return ""


def _annotations(metadata: Object) -> dict[str, str]:
    """All but kubectl's copy of the whole manifest, which no one needs twice."""
    return {key: text for key, text in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isdecimal() else -1


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
