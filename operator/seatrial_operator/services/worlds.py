"""WorldImages: resolved, pulled to nodes, inspected, and told about."""

from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import InvalidInputError
from seatrial_api.world_image import WorldImage, WorldImageStatus
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import AlreadyExistsError, RefusedError
from seatrial_operator.kube.resources import JOBS, NODES, PODS, SECRETS, WORLD_IMAGES, Object, ObjectKey, Watch, key_of
from seatrial_operator.kube.times import utc_now
from seatrial_operator.manifests.inspection import INSPECTS_LABEL, inspection_job
from seatrial_operator.manifests.pod_template import PodTemplateError
from seatrial_operator.manifests.worlds import DOCKER_CONFIG_KEY, PRE_PULL_LABEL, images_id, pull_pod
from seatrial_operator.plan.inspection import InspectionPlan, plan_inspection, read_inspection_job, refused
from seatrial_operator.plan.prepull import PullPlan, plan_pulls, read_pull_pod
from seatrial_operator.plan.worlds import (
    Found,
    Lookup,
    Refused,
    Unreachable,
    WorldPlan,
    resolve,
    world_status,
    world_stories,
)
from seatrial_operator.registry.errors import ImageNotFoundError, RegistryUnavailableError, UnauthorizedError
from seatrial_operator.registry.reference import Reference
from seatrial_operator.registry.resolver import Resolver
from seatrial_operator.services.events import Events
from seatrial_operator.services.pull_secrets import PullSecrets
from seatrial_operator.services.typed import Typed, UnreadableObjectError, is_deleting, is_owned, read_world, refuse

_LEAST_WAIT_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a registry answered, and to which question."""

    image: str
    pull_secret: str | None
    lookup: Lookup
    at: float


@dataclass
class WorldService:
    """Reconciles WorldImages: pull secret ─▶ digest ─▶ nodes, inspection ─▶ one status write."""

    client: KubeClient
    resolver: Resolver
    pull_secrets: PullSecrets
    config: OperatorConfig
    clock: Clock = SYSTEM_CLOCK
    utc_now: Callable[[], datetime] = utc_now
    _asked: dict[ObjectKey, _Asked] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of its keys."""
        return WORLD_IMAGES.kind

    @property
    def watches(self) -> Sequence[Watch]:
        """What it wants to hear of."""
        return (
            Watch(WORLD_IMAGES, "", lambda item, _: [key_of(WORLD_IMAGES, item)]),
            Watch(JOBS, INSPECTS_LABEL, _notice_job),
        )

    async def keys(self) -> list[ObjectKey]:
        """Every WorldImage that there is now."""
        items = self.client.each_in(WORLD_IMAGES, self.config.namespaces)
        return [key_of(WORLD_IMAGES, item) async for item in items]

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Look at one world and do what is to be done now; seconds until the next look, none if it is gone."""
        item = await self.client.find(WORLD_IMAGES, key.namespace, key.name)
        if item is None or is_deleting(item):
            self._asked.pop(key, None)
            return None
        now = self.utc_now()
        try:
            world = read_world(item)
        except UnreadableObjectError as exc:
            await refuse(self.client, WORLD_IMAGES, exc, now)
            return self.config.resync_seconds
        return await self._carry_out(key, world, now)

    async def _carry_out(self, key: ObjectKey, world: Typed[WorldImage], now: datetime) -> float:
        former = world.item.status or WorldImageStatus()
        lookup, waits = await self._look_up(key, world, now)
        resolution = resolve(world.item, lookup)
        pulls = await self._pull(key, world, resolution.digest) if resolution.digest else None
        inspection = await self._inspect(key, world, resolution.digest)
        plan = WorldPlan(resolution, pulls, inspection)
        status = world_status(world.item, world.generation, plan, now)
        await self._write(key, world, former, status)
        for story in world_stories(former, status, resolution):
            await Events(self.client, WORLD_IMAGES).tell(key, world.uid, story)
        if inspection.is_under_way or (pulls is not None and pulls.num_pulled < pulls.num_wanted):
            waits.append(self.config.poll_seconds)
        return max(_LEAST_WAIT_SECONDS, min([self.config.resync_seconds, *waits]))

    async def _look_up(self, key: ObjectKey, world: Typed[WorldImage], now: datetime) -> tuple[Lookup, list[float]]:
        """What the image is, asked anew when it is time; and the seconds until something is due."""
        settings, spec = self.config.registries, world.item.spec
        try:
            renewal = await self.pull_secrets.renew(key, world, now)
        except UnauthorizedError as exc:
            return Refused("Unauthorized", str(exc)), [settings.retry_seconds]
        except RegistryUnavailableError as exc:
            log.warning("cannot renew a pull secret; trying again", error=str(exc))
            renewal = now
        # A token that is due again at once was short-lived from the start: no reason to ask in a loop.
        waits = [] if renewal is None else [max(settings.retry_seconds, (renewal - now).total_seconds())]
        asked = self._asked.get(key)
        if (
            asked is None
            or (asked.image, asked.pull_secret) != (spec.image, spec.pull_secret)
            or self.clock.now() >= asked.at + self._interval(asked.lookup)
        ):
            lookup = await self._ask(key, world.item)
            asked = self._asked[key] = _Asked(spec.image, spec.pull_secret, lookup, self.clock.now())
        return asked.lookup, [*waits, asked.at + self._interval(asked.lookup) - self.clock.now()]

    def _interval(self, lookup: Lookup) -> float:
        settings = self.config.registries
        return settings.recheck_seconds if isinstance(lookup, Found) else settings.retry_seconds

    async def _ask(self, key: ObjectKey, world: WorldImage) -> Lookup:
        config: bytes | None = None
        if world.spec.pull_secret is not None:
            config = await self._docker_config(key, world.spec.pull_secret)
            if config is None:
                what = f"there is no Secret {key.namespace}/{world.spec.pull_secret} with registry credentials"
                return Refused("Unauthorized", f"spec.pullSecret: {what}; create it, or name another")
        try:
            return Found(await self.resolver.digest(Reference.parse(world.spec.image), config))
        except ImageNotFoundError as exc:
            return Refused("NotFound", str(exc))
        except (UnauthorizedError, InvalidInputError) as exc:
            return Refused("Unauthorized", str(exc))
        except RegistryUnavailableError as exc:
            return Unreachable(str(exc))

    async def _docker_config(self, key: ObjectKey, name: str) -> bytes | None:
        secret = await self.client.find(SECRETS, key.namespace, name) or {}
        content = secret.get("data", {}).get(DOCKER_CONFIG_KEY)
        return None if content is None else b64decode(content)

    async def _pull(self, key: ObjectKey, world: Typed[WorldImage], digest: str) -> PullPlan | None:
        """Bring the pods that pull to what they should be; none if nothing is to be pulled and nothing was."""
        pre_pull = world.item.spec.pre_pull
        found = await self.client.list(PODS, key.namespace, {PRE_PULL_LABEL: key.name})
        pods = [read_pull_pod(pod) for pod in found if is_owned(pod, world.uid) and not is_deleting(pod)]
        image = str(Reference.parse(world.item.spec.image).pinned(digest))
        nodes = await self._nodes(pre_pull.node_selector) if pre_pull else {}
        parallelism = pre_pull.parallelism if pre_pull else 0
        plan = plan_pulls(nodes, pods, images_id(world.item.spec, image), parallelism)
        for pod in plan.remove:
            await self.client.delete(PODS, key.namespace, pod.name, uid=pod.uid)
        for node in plan.start:
            try:
                await self.client.create(PODS, key.namespace, pull_pod(world.item, world.uid, image, node))
            except AlreadyExistsError:
                log.debug("the pod is there already, or is still going", node=node)
        return plan if pre_pull else None

    async def _inspect(self, key: ObjectKey, world: Typed[WorldImage], digest: str | None) -> InspectionPlan:
        """Bring the Jobs that inspect to what they should be."""
        labels = {INSPECTS_LABEL: key.name}
        found = await self.client.list(JOBS, key.namespace, labels)
        own = [item for item in found if is_owned(item, world.uid) and not is_deleting(item)]
        pods = await self.client.list(PODS, key.namespace, labels) if own else []
        jobs = [
            read_inspection_job(item, [pod for pod in pods if is_owned(pod, item["metadata"]["uid"])]) for item in own
        ]
        plan = plan_inspection(world.item, digest, jobs, self.config)
        for job in plan.remove:
            await self.client.delete(JOBS, key.namespace, job.name, uid=job.uid)
        if plan.start and world.item.spec.inspection:
            try:
                manifest = inspection_job(world.item, world.uid, world.item.spec.inspection, plan.revision, self.config)
                await self.client.apply(JOBS, key.namespace, manifest)
            except PodTemplateError as exc:
                return refused(plan, f"config.inspections.podTemplate, {exc}")
            except RefusedError as exc:
                return refused(plan, str(exc))
        return plan

    async def _nodes(self, selector: dict[str, str]) -> dict[str, bool]:
        """Selected nodes, and whether they are ready."""
        return {node["metadata"]["name"]: _is_ready(node) for node in await self.client.list(NODES, None, selector)}

    async def _write(
        self, key: ObjectKey, world: Typed[WorldImage], former: WorldImageStatus, status: WorldImageStatus
    ) -> None:
        if status == former:
            return
        metadata = {"name": key.name, "uid": world.uid}
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        await self.client.apply_status(WORLD_IMAGES, key.namespace, {"metadata": metadata, "status": body})


def _notice_job(item: Object, _: bool) -> list[ObjectKey]:
    return [ObjectKey(WORLD_IMAGES.kind, item["metadata"]["namespace"], item["metadata"]["labels"][INSPECTS_LABEL])]


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
