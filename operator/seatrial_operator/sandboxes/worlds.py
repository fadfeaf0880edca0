"""What WorldImages and RolloutPools ask for, and what has to be there before a sandbox is made."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from seatrial_api.rollout_pool import RolloutPool
from seatrial_api.spec.rollout import SandboxPoolSpec
from seatrial_api.world_image import WorldImage
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import KubeError, NotFoundError
from seatrial_operator.kube.resources import NETWORK_POLICIES, RUNTIME_CLASSES, Object
from seatrial_operator.manifests.names import Manifest
from seatrial_operator.manifests.sandbox_pod import SandboxPlan, revision_of, sandbox_pod
from seatrial_operator.manifests.sandbox_policy import sandbox_policy
from seatrial_operator.registry.reference import Reference
from seatrial_operator.sandboxes.core.demand import Bounds
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.services.typed import Typed, UnreadableObjectError, read_pool, read_world

log = structlog.get_logger(__name__)

_IMAGE_VOLUMES_SINCE = (1, 35)


@dataclass(frozen=True, slots=True, order=True)
class WorldKey:
    """Which world."""

    namespace: str
    world: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the cluster can do."""

    has_image_volumes: bool
    has_runtime_class: bool

    @classmethod
    async def find(cls, client: KubeClient, config: SandboxesConfig) -> "ClusterFacts":
        """Look."""
        has_volumes = config.image_volumes == "Always"
        if config.image_volumes == "Auto":
            has_volumes = await client.server_version() >= _IMAGE_VOLUMES_SINCE
        has_class = False
        if config.runtime_class:
            has_class = await client.find(RUNTIME_CLASSES, None, config.runtime_class) is not None
        return cls(has_volumes, has_class)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the sandboxes of a world are made now."""

    pod: Manifest | None = None
    """Without a name."""
    failure: Failure | None = None
    """Why none can be made."""

    @property
    def revision(self) -> str:
        """Which form of the world this is; empty if it has none."""
        return revision_of(self.pod) if self.pod else ""


@dataclass
class Worlds:
    """The newest WorldImages and RolloutPools, as watches tell of them."""

    client: KubeClient
    config: SandboxesConfig
    public_key: str
    facts: ClusterFacts
    _worlds: dict[WorldKey, Typed[WorldImage]] = field(default_factory=dict)
    _pools: dict[tuple[str, str], Typed[RolloutPool]] = field(default_factory=dict)
    _guarded: dict[WorldKey, Manifest] = field(default_factory=dict)
    """NetworkPolicies that were stored, and read back as they were sent."""
    _refusals: dict[WorldKey, str] = field(default_factory=dict)

    def keys(self) -> set[WorldKey]:
        """Worlds that exist, or that a pool asks for."""
        asked = {WorldKey(ns, spec.world) for (ns, _), pool in self._pools.items() for spec in pool.item.spec.sandboxes}
        return asked | self._worlds.keys()

    def exists(self, key: WorldKey) -> bool:
        """Whether there is such a WorldImage."""
        return key in self._worlds

    def pools(self) -> Iterator[tuple[str, Typed[RolloutPool]]]:
        """Namespace and pool of every RolloutPool that asks for sandboxes."""
        return ((namespace, pool) for (namespace, _), pool in self._pools.items() if pool.item.spec.sandboxes)

    def set_worlds(self, namespace: str | None, items: Sequence[Object]) -> None:
        """All WorldImages of a namespace, or of all."""
        self._worlds = {key: one for key, one in self._worlds.items() if namespace not in {None, key.namespace}}
        for item in items:
            self.put_world(item, is_gone=False)

    def put_world(self, item: Object, is_gone: bool) -> WorldKey:
        """A WorldImage as it is now."""
        key = WorldKey(item["metadata"]["namespace"], item["metadata"]["name"])
        self._worlds.pop(key, None)
        self._guarded.pop(key, None) if is_gone else None
        if not is_gone:
            try:
                self._worlds[key] = read_world(item)
            except UnreadableObjectError as exc:
                log.warning("cannot read a WorldImage", namespace=key.namespace, name=key.world, error=exc.fields)
        return key

    def set_pools(self, namespace: str | None, items: Sequence[Object]) -> None:
        """All RolloutPools of a namespace, or of all."""
        self._pools = {key: one for key, one in self._pools.items() if namespace not in {None, key[0]}}
        for item in items:
            self.put_pool(item, is_gone=False)

    def put_pool(self, item: Object, is_gone: bool) -> set[WorldKey]:
        """A RolloutPool as it is now; the worlds that it asked for and asks for."""
        name = (item["metadata"]["namespace"], item["metadata"]["name"])
        former = self._pools.pop(name, None)
        if not is_gone:
            try:
                self._pools[name] = read_pool(item)
            except UnreadableObjectError as exc:
                log.warning("cannot read a RolloutPool", namespace=name[0], name=name[1], error=exc.fields)
        both = (former, self._pools.get(name))
        return {WorldKey(name[0], spec.world) for pool in both if pool for spec in pool.item.spec.sandboxes}

    def bounds(self, key: WorldKey) -> Bounds:
        """What all pools of the namespace ask for together; claims of a world that none names start cold."""
        return Bounds.of([*self._specs(key)] or [SandboxPoolSpec(world=key.world)])

    def recipe(self, key: WorldKey) -> Recipe:
        """How the world's sandboxes are made now."""
        world = self._worlds.get(key)
        if world is None:
            told = f"there is no WorldImage {key.namespace}/{key.world}; make it, or name another world"
            return Recipe(failure=Failure(FailureKind.WORLD, told))
        status = world.item.status
        if status is None or not status.digest or status.image != world.item.spec.image:
            told = f"the image of WorldImage {key.namespace}/{key.world} is not resolved; see its condition Resolved"
            return Recipe(failure=Failure(FailureKind.WORLD, told))
        image = str(Reference.parse(world.item.spec.image).pinned(status.digest))
        pod = sandbox_pod(world.item, world.uid, image, self._plan(key, world.item))
        if key not in self._guarded:
            told = f"the NetworkPolicy of WorldImage {key.namespace}/{key.world} is not in force yet"
            refusal = self._refusals.get(key)
            failure = Failure(FailureKind.WORLD, f"{told}: {refusal}" if refusal else told)
            return Recipe(pod, failure)
        return Recipe(pod)

    def unguarded(self) -> list[WorldKey]:
        """Worlds whose NetworkPolicy is not stored as it has to be."""
        return [key for key, world in self._worlds.items() if self._guarded.get(key) != self._policy(world)]

    def recheck(self) -> None:
        """Have every NetworkPolicy read back again."""
        for key in self._guarded:
            self._guarded[key] = {}

    async def guard(self, key: WorldKey) -> None:
        """Store a world's NetworkPolicy and compare what the API server holds with it: no sandbox without one."""
        world = self._worlds.get(key)
        if world is None:
            return
        policy = self._policy(world)
        try:
            await self.client.apply(NETWORK_POLICIES, key.namespace, policy)
            stored = await self.client.get(NETWORK_POLICIES, key.namespace, policy["metadata"]["name"])
        except KubeError as exc:
            log.warning("cannot store a NetworkPolicy", namespace=key.namespace, world=key.world, error=str(exc))
            self._refusals[key] = str(exc)
            if isinstance(exc, NotFoundError):
                self._guarded.pop(key, None)
            return
        if stored["spec"] != policy["spec"]:
            self._refusals[key] = f"the API server holds another: {stored['spec']}"
            self._guarded.pop(key, None)
            return
        self._refusals.pop(key, None)
        self._guarded[key] = policy

    def _specs(self, key: WorldKey) -> Iterable[SandboxPoolSpec]:
        for (namespace, _), pool in self._pools.items():
            if namespace == key.namespace:
                yield from (spec for spec in pool.item.spec.sandboxes if spec.world == key.world)

    def _plan(self, key: WorldKey, world: WorldImage) -> SandboxPlan:
        default = self.config.runtime_class if self.facts.has_runtime_class else None
        return SandboxPlan(
            config=self.config,
            public_key=self.public_key,
            lifetime_seconds=self.bounds(key).lifetime_seconds,
            runtime_class=world.spec.runtime_class or default,
            has_image_volumes=self.facts.has_image_volumes,
        )

    def _policy(self, world: Typed[WorldImage]) -> Manifest:
        return sandbox_policy(world.item, world.uid, self.config)
