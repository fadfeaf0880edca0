"""Objects of our smaller kinds, read from the API server."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from pydantic import ValidationError

from seatrial_api.conditions import Condition
from seatrial_api.kubernetes_object import API_GROUP, API_VERSION, ObjectMeta
from seatrial_api.rollout_pool import RolloutPool, RolloutPoolSpec, RolloutPoolStatus
from seatrial_api.rules import COLLECT
from seatrial_api.world_image import WorldImage, WorldImageSpec, WorldImageStatus
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import Object, Resource

log = structlog.get_logger(__name__)


class UnreadableObjectError(ValueError):
    """An object does not fit the models, so that the definition in the cluster is of another version."""

    def __init__(self, item: Object, fields: str) -> None:
        self.item = item
        """The object."""
        self.fields = fields
        """Each field that does not fit."""
        super().__init__(f"this operator does not know: {fields}")


@dataclass(frozen=True, slots=True)
class Typed[T]:
    """An object of ours as the API server holds it."""

    item: T
    uid: str
    generation: int


def read_world(item: Object) -> Typed[WorldImage]:
    """A WorldImage.

    Raises:
        UnreadableObjectError: naming each field that does not fit.
    """
    return _typed(item, WorldImage.model_construct(**_fields(item, "WorldImage", WorldImageSpec, WorldImageStatus)))


def read_pool(item: Object) -> Typed[RolloutPool]:
    """A RolloutPool.

    Raises:
        UnreadableObjectError: naming each field that does not fit.
    """
    return _typed(item, RolloutPool.model_construct(**_fields(item, "RolloutPool", RolloutPoolSpec, RolloutPoolStatus)))


def is_owned(item: Object, uid: str) -> bool:
    """Whether an object belongs to the one of this uid."""
    return any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or [])


def is_deleting(item: Object) -> bool:
    """Whether an object is on its way out."""
    return "deletionTimestamp" in item["metadata"]


def _typed[T](item: Object, model: T) -> Typed[T]:
    metadata = item["metadata"]
    return Typed(model, metadata["uid"], metadata["generation"])


def _fields(item: Object, kind: str, spec: type[Any], status: type[Any]) -> dict[str, Any]:
    """Rules of the spec are not looked at again: admission has."""
    metadata = item["metadata"]
    names = {"name": metadata["name"], "namespace": metadata["namespace"], "labels": metadata.get("labels") or {}}
    try:
        return {
            "api_version": f"{API_GROUP}/{API_VERSION}",
            "kind": kind,
            "metadata": ObjectMeta.model_construct(**names, annotations=metadata.get("annotations") or {}),
            "spec": spec.model_validate(item["spec"], context=COLLECT),
            "status": status.model_validate(item.get("status") or {}),
        }
    except ValidationError as exc:
        told = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise UnreadableObjectError(item, told) from exc


async def refuse(client: KubeClient, resource: Resource, exc: UnreadableObjectError, now: datetime) -> None:
    """Tell in an object's status, once a generation, that this operator cannot read it."""
    metadata = exc.item["metadata"]
    if (exc.item.get("status") or {}).get("observedGeneration") == metadata["generation"]:
        return
    log.warning("cannot read an object; are the operator and its CRDs of one version?", error=exc.fields)
    condition = Condition(
        type="Ready",
        status="False",
        reason="InvalidSpec",
        message=str(exc),
        last_transition_time=now,
        observed_generation=metadata["generation"],
    )
    told = [condition.model_dump(mode="json", by_alias=True)]
    status = {"observedGeneration": metadata["generation"], "conditions": told}
    manifest = {"metadata": {"name": metadata["name"], "uid": metadata["uid"]}, "status": status}
    await client.apply_status(resource, metadata["namespace"], manifest)
