"""A list, and all that happened since: what a cache is filled from."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import ExpiredError, KubeError
from seatrial_operator.kube.resources import Object, Resource

log = structlog.get_logger(__name__)

_FIRST_WAIT_SECONDS = 0.1
_MAX_WAIT_SECONDS = 5.0


@dataclass
class Reflector:
    """Tells of all objects of a kind, first as a list, then one by one.

        list ──▶ on_list ──▶ watch ──▶ on_event …  (broken: go on where it was; expired: list anew)

    The list is read from the storage itself, never from a cache of the API server: it holds all that was ever answered.
    """

    client: KubeClient
    resource: Resource
    namespace: str | None
    selector: str
    on_list: Callable[[Sequence[Object], int], None]
    """Takes all objects and the version that they are as of."""
    on_event: Callable[[Object, bool], None]
    """Takes an object as it is now, or was last, and whether it is gone."""
    clock: Clock = SYSTEM_CLOCK
    is_listed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the first list was told."""

    async def run(self) -> None:
        """Go on until cancelled."""
        version, wait = "", _FIRST_WAIT_SECONDS
        while True:
            try:
                if not version:
                    version = await self._list()
                async for kind, item in self.client.watch(self.resource, self.namespace, version, self.selector):
                    version, wait = item["metadata"]["resourceVersion"], _FIRST_WAIT_SECONDS
                    if kind != "BOOKMARK":
                        self.on_event(item, kind == "DELETED")
            except ExpiredError:
                version = ""
            except KubeError as exc:
                log.warning("a watch broke; going on", resource=self.resource.plural, error=str(exc))
            await self.clock.sleep(wait)
            wait = min(_MAX_WAIT_SECONDS, wait * 2)

    async def _list(self) -> str:
        items, version = await self.client.list_at(self.resource, self.namespace, self.selector)
        self.on_list(items, int(version))
        self.is_listed.set()
        return version
