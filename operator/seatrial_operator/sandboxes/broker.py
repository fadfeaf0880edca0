"""The broker: one pool per world, filled by watches, asked by callers, carried out by requests."""

import asyncio
import secrets
import string
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import time

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import SeatrialError
from seatrial_api.pods import ROLE_LABEL
from seatrial_api.sandboxes import SANDBOX_ROLE, WORLD_LABEL
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.reflector import Reflector
from seatrial_operator.kube.resources import PODS, ROLLOUT_POOLS, WORLD_IMAGES, Object
from seatrial_operator.metrics.sandboxes import LOST
from seatrial_operator.sandboxes.core.actions import Action
from seatrial_operator.sandboxes.core.claims import Claim, ClaimState
from seatrial_operator.sandboxes.core.patience import Patience
from seatrial_operator.sandboxes.core.pods import SandboxPod, read_sandbox
from seatrial_operator.sandboxes.core.pool import Pool
from seatrial_operator.sandboxes.requests import Requests
from seatrial_operator.sandboxes.worlds import Recipe, WorldKey, Worlds

log = structlog.get_logger(__name__)

_TICK_SECONDS = 1.0
_NAME_CHARS = string.ascii_lowercase + string.digits
_RANDOM_CHARS = 10
_MAX_NAME_CHARS = 63
_SELECTOR = f"{ROLE_LABEL}={SANDBOX_ROLE},{WORLD_LABEL}"


class TakenError(SeatrialError):
    """The trial has, or waits for, a sandbox of another world."""

    def __init__(self, *, trial: str, world: str, other: str) -> None:
        told = f"trial {trial} asks for a sandbox of {world}, and has one of {other} or waits for it"
        super().__init__(f"{told}; release that first, or ask under another name")


@dataclass(frozen=True, slots=True)
class Lost:
    """A sandbox that a trial held and no longer has."""

    trial: str
    run: str
    sandbox: str
    claim: Claim


@dataclass
class _Place:
    """A pool with what belongs to it."""

    pool: Pool
    requests: Requests
    recipe: Recipe = field(default_factory=Recipe)
    waiters: dict[str, list[asyncio.Future[Claim]]] = field(default_factory=lambda: defaultdict(list))
    """Calls that wait, by trial."""


class Broker:
    """Owns all pools.

        reflectors ─ pods, worlds, pools ─▶ ┌────────┐ ─ actions ─▶ one task per request
        callers ─ claim, renew, release ──▶ │ broker │
        tick, once a second ──────────────▶ └────────┘ ─ claims settled ─▶ callers that wait, watchers

    Everything happens on one event loop, so pools need no locks: between two awaits a pool is consistent. `run` ends
    with its task; requests in flight are cancelled, which any later broker makes good.
    """

    def __init__(
        self,
        client: KubeClient,
        worlds: Worlds,
        config: OperatorConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        wall: Callable[[], float] = time,
    ) -> None:
        self.worlds = worlds
        self._client = client
        self._config = config
        self._clock = clock
        self._wall = wall
        self._places: dict[WorldKey, _Place] = {}
        self._watchers: dict[str, list[asyncio.Queue[Lost]]] = defaultdict(list)
        self._tasks: asyncio.TaskGroup | None = None
        self._is_serving = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        """Whether everything was listed, so that claims can be decided."""
        return self._is_serving.is_set()

    async def serving(self) -> None:
        """Wait until claims can be decided."""
        await self._is_serving.wait()

    async def run(self) -> None:
        """Keep all pools until cancelled."""
        namespaces: Sequence[str | None] = self._config.namespaces or (None,)
        reflectors = [one for namespace in namespaces for one in self._reflectors(namespace)]
        async with asyncio.TaskGroup() as self._tasks:
            for reflector in reflectors:
                self._tasks.create_task(reflector.run(), name=f"watch {reflector.resource.plural}")
            for reflector in reflectors:
                await reflector.is_listed.wait()
            self._refresh(self.worlds.keys() | self._places.keys())
            self._is_serving.set()
            log.info("serving", worlds=len(self.worlds.keys()), pools=len(self._places))
            self._tasks.create_task(self._guard(), name="network policies")
            await self._tick()

    # --- callers

    def prefetch(self, key: WorldKey, run: str, count: int) -> tuple[int, int]:
        """A run's word about trials to come; how many sandboxes are warm, and how many are kept so."""
        place = self._place(key)
        place.pool.prefetches.put(run, count, self._clock.now())
        self._pump(place)
        return place.pool.num_warm, place.pool.supply.target(self._clock.now())

    async def claim(self, key: WorldKey, run: str, trial: str, seconds: float, replaces: str = "") -> Claim:
        """A trial's claim once it is held or lost.

        Raises:
            TakenError: if the trial has a sandbox of another world, or waits for one.
        """
        self._check_is_free(key, trial)
        place, now = self._place(key), self._clock.now()
        claim = place.pool.claim(trial, run, now + seconds, now, replaces)
        self._pump(place)
        if claim.state is ClaimState.HELD:
            return claim
        answer: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        waiters = place.waiters[trial]
        waiters.append(answer)
        try:
            return await answer
        finally:
            waiters.remove(answer)
            if not waiters:
                place.waiters.pop(trial, None)
                place.pool.withdraw(trial)

    def renew(self, namespace: str, trial: str) -> tuple[Claim, SandboxPod | None] | None:
        """Keep a trial's sandbox; its claim and pod, none if it has none."""
        for place in self._places_of(namespace):
            claim = place.pool.renew(trial, self._clock.now())
            if claim is not None:
                return claim, place.pool.stock.get(claim.pod)
        return None

    def release(self, namespace: str, trial: str, sandbox: str) -> None:
        """Take a trial's sandbox back."""
        for place in self._places_of(namespace):
            place.pool.release(trial, sandbox)
            self._pump(place)

    async def losses(self, namespace: str, run: str, trial: str = "") -> AsyncIterator[Lost]:
        """Sandboxes that are lost, of a run or a trial if it is named: those of now, then each when it happens."""
        with self._watching(namespace) as queue:
            for place in self._places_of(namespace):
                for claim in place.pool.claims.in_state(ClaimState.LOST):
                    queue.put_nowait(_lost(claim))
            while True:
                lost = await queue.get()
                if lost.sandbox and run in {"", lost.run} and trial in {"", lost.trial}:
                    yield lost

    def sandbox(self, key: WorldKey, name: str) -> SandboxPod | None:
        """A pod, as it is known."""
        place = self._places.get(key)
        return place.pool.stock.get(name) if place else None

    def pools(self, namespace: str | None = None) -> Iterator[tuple[WorldKey, Pool]]:
        """All pools, or those of a namespace."""
        for key, place in sorted(self._places.items()):
            if namespace in {None, key.namespace}:
                yield key, place.pool

    # --- watches

    def _reflectors(self, namespace: str | None) -> list[Reflector]:
        def worlds_listed(items: Sequence[Object], _: int) -> None:
            self.worlds.set_worlds(namespace, items)
            self._refresh(self.worlds.keys() | self._places.keys())

        def pools_listed(items: Sequence[Object], _: int) -> None:
            self.worlds.set_pools(namespace, items)
            self._refresh(self.worlds.keys() | self._places.keys())

        return [
            Reflector(self._client, WORLD_IMAGES, namespace, "", worlds_listed, self._on_world, self._clock),
            Reflector(self._client, ROLLOUT_POOLS, namespace, "", pools_listed, self._on_pool, self._clock),
            Reflector(
                self._client,
                PODS,
                namespace,
                _SELECTOR,
                lambda items, version: self._on_pods(namespace, items, version),
                self._on_pod,
                self._clock,
            ),
        ]

    def _on_world(self, item: Object, is_gone: bool) -> None:
        self._refresh({self.worlds.put_world(item, is_gone)})

    def _on_pool(self, item: Object, is_gone: bool) -> None:
        self._refresh(self.worlds.put_pool(item, is_gone))

    def _on_pods(self, namespace: str | None, items: Sequence[Object], version: int) -> None:
        listed: dict[WorldKey, list[SandboxPod]] = defaultdict(list)
        for item in items:
            listed[_key_of(item)].append(read_sandbox(item))
        known = {key for key in self._places if namespace in {None, key.namespace}}
        for key in listed.keys() | known:
            place = self._place(key)
            place.pool.reset(listed[key], version, self._clock.now())
            self._pump(place)

    def _on_pod(self, item: Object, is_gone: bool) -> None:
        place, pod = self._place(_key_of(item)), read_sandbox(item)
        if is_gone:
            place.pool.gone(pod, self._clock.now())
        else:
            place.pool.observe(pod, self._clock.now())
        self._pump(place)

    # --- inside

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(_TICK_SECONDS)
            now, wall = self._clock.now(), self._wall()
            for place in list(self._places.values()):
                place.pool.tick(now, wall)
                self._pump(place)
            self._forget_idle(now)

    async def _guard(self) -> None:
        """Have every world's NetworkPolicy in force before a sandbox is made, and look at it again now and then."""
        next_check = self._clock.now() + self._config.resync_seconds
        while True:
            if self._clock.now() >= next_check:
                self.worlds.recheck()
                next_check = self._clock.now() + self._config.resync_seconds
            for key in self.worlds.unguarded():
                await self.worlds.guard(key)
                self._refresh({key})
            await self._clock.sleep(_TICK_SECONDS)

    def _forget_idle(self, now: float) -> None:
        """Forget worlds that exist no more, or never did, once nothing of them is left."""
        for key in self._places.keys() - self.worlds.keys():
            place = self._places[key]
            if place.pool.is_idle and not place.waiters and not place.pool.prefetches.total(now):
                del self._places[key]

    def _check_is_free(self, key: WorldKey, trial: str) -> None:
        for other, place in self._places.items():
            claim = place.pool.claims.get(trial) if other.namespace == key.namespace and other != key else None
            if claim is not None and claim.state is not ClaimState.LOST:
                raise TakenError(trial=trial, world=key.world, other=other.world)

    def _refresh(self, keys: set[WorldKey]) -> None:
        """Bring pools to what worlds and RolloutPools say now."""
        for key in keys:
            place = self._place(key)
            place.recipe = self.worlds.recipe(key)
            place.pool.become(self.worlds.bounds(key), place.recipe.revision, place.recipe.failure)
            self._pump(place)

    def _pump(self, place: _Place) -> None:
        """Send what a pool decided, and tell whoever waits for it."""
        if self._tasks is None or not self._is_serving.is_set():
            return
        for action in place.pool.actions(self._clock.now()):
            self._tasks.create_task(self._carry_out(place, action))
        for claim in place.pool.claims.drain_settled():
            for answer in place.waiters.get(claim.trial, ()):
                if not answer.done():
                    answer.set_result(claim)
            if claim.state is ClaimState.LOST:
                self._tell_lost(place, claim)

    async def _carry_out(self, place: _Place, action: Action) -> None:
        await place.requests.carry_out(action)
        self._pump(place)

    def _tell_lost(self, place: _Place, claim: Claim) -> None:
        namespace = place.requests.namespace
        if claim.pod and claim.failure:
            LOST.labels(team=namespace, world=place.pool.world, kind=claim.failure.kind.value).inc()
            log.info(
                "a sandbox is lost",
                namespace=namespace,
                sandbox=claim.pod,
                trial=claim.trial,
                kind=claim.failure.kind.value,
                message=claim.failure.message,
            )
        for queue in self._watchers.get(namespace, ()):
            queue.put_nowait(_lost(claim))

    @contextmanager
    def _watching(self, namespace: str) -> Iterator[asyncio.Queue[Lost]]:
        queue: asyncio.Queue[Lost] = asyncio.Queue()
        self._watchers[namespace].append(queue)
        try:
            yield queue
        finally:
            self._watchers[namespace].remove(queue)

    def _places_of(self, namespace: str) -> list[_Place]:
        return [place for key, place in self._places.items() if key.namespace == namespace]

    def _place(self, key: WorldKey) -> _Place:
        with suppress(KeyError):
            return self._places[key]
        settings = self._config.sandboxes
        patience = Patience(
            lease=settings.lease_seconds,
            prefetch=settings.prefetch_seconds,
            surplus=settings.surplus_seconds,
            trouble=settings.trouble_seconds,
        )
        pool = Pool(key.world, lambda: _new_name(key.world), patience)
        requests = Requests(
            self._client,
            key.namespace,
            pool,
            lambda: place.recipe.pod,
            asyncio.Semaphore(settings.creations),
            self._clock,
            self._wall,
        )
        place = self._places[key] = _Place(pool, requests)
        if self._is_serving.is_set():
            self._refresh({key})
        return place


def _new_name(world: str) -> str:
    """A pod's name, which never comes a second time."""
    random = "".join(secrets.choice(_NAME_CHARS) for _ in range(_RANDOM_CHARS))
    return f"{world[: _MAX_NAME_CHARS - _RANDOM_CHARS - 1]}-{random}"


def _key_of(item: Object) -> WorldKey:
    return WorldKey(item["metadata"]["namespace"], item["metadata"]["labels"][WORLD_LABEL])


def _lost(claim: Claim) -> Lost:
    return Lost(claim.trial, claim.run, claim.pod, claim)
