"""Events about our objects, for `kubectl describe` and `kubectl events`."""

import secrets
from dataclasses import dataclass

import structlog

from seatrial_operator.kube.client import FIELD_MANAGER, KubeClient
from seatrial_operator.kube.errors import KubeError
from seatrial_operator.kube.resources import EVENTS, ObjectKey, Resource
from seatrial_operator.kube.times import micro_time, utc_now
from seatrial_operator.plan.actions import Story

log = structlog.get_logger(__name__)

_NOTE_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Events:
    """Writes events about objects of one kind. They are for people: one that cannot be written is logged alone."""

    client: KubeClient
    about: Resource

    async def tell(self, key: ObjectKey, uid: str, story: Story) -> None:
        """Write an event about an object."""
        log.info("something happened to an object", reason=story.reason, message=story.message)
        manifest = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": f"{key.name}.{secrets.token_hex(8)}", "namespace": key.namespace},
            "eventTime": micro_time(utc_now()),
            "reportingController": f"seatrial.dev/{FIELD_MANAGER}",
            "reportingInstance": FIELD_MANAGER,
            "action": "Reconcile",
            "reason": story.reason,
            "type": story.kind,
            "note": story.message[:_NOTE_CHARS],
            "regarding": {
                "apiVersion": self.about.api_version,
                "kind": self.about.kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": uid,
            },
        }
        try:
            await self.client.create(EVENTS, key.namespace, manifest)
        except KubeError as exc:
            log.warning("cannot write an event", error=str(exc))
