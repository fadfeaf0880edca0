"""How many sandboxes there are: in the status of RolloutPools, by the broker alone, and as metrics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.rollout_pool import RolloutPool, SandboxCounts
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import KubeError
from seatrial_operator.kube.resources import ROLLOUT_POOLS, Object
from seatrial_operator.metrics.sandboxes import CREATED, PROBLEM, SANDBOXES
from seatrial_operator.sandboxes.core.pool import Pool
from seatrial_operator.sandboxes.core.stock import Shelf
from seatrial_operator.sandboxes.worlds import WorldKey, Worlds
from seatrial_operator.services.typed import Typed

log = structlog.get_logger(__name__)


@dataclass
class Counts:
    """Tells, every few seconds, what has changed."""

    client: KubeClient
    worlds: Worlds
    pools: Callable[[], Iterator[tuple[WorldKey, Pool]]]
    status_seconds: float
    clock: Clock = SYSTEM_CLOCK
    _written: dict[str, list[Object]] = field(default_factory=dict)
    """What each RolloutPool's status says, by uid."""
    _failed_before: dict[str, dict[str, int]] = field(default_factory=dict)
    """Failures that brokers before this one had counted, by uid and world."""
    _measured: dict[WorldKey, "_Measured"] = field(default_factory=dict)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            pools = dict(self.pools())
            self._measure(pools)
            for namespace, pool in list(self.worlds.pools()):
                await self._write(namespace, pool, pools)
            await self.clock.sleep(self.status_seconds)

    async def _write(self, namespace: str, pool: Typed[RolloutPool], pools: dict[WorldKey, Pool]) -> None:
        counts = [self._counts(namespace, pool, spec.world, pools) for spec in pool.item.spec.sandboxes]
        body = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in counts]
        if self._written.get(pool.uid) == body:
            return
        metadata = {"name": pool.item.metadata.name, "uid": pool.uid}
        try:
            await self.client.apply_status(
                ROLLOUT_POOLS, namespace, {"metadata": metadata, "status": {"sandboxes": body}}
            )
        except KubeError as exc:
            log.warning("cannot write the sandboxes of a RolloutPool", pool=metadata["name"], error=str(exc))
        else:
            self._written[pool.uid] = body

    def _counts(
        self, namespace: str, pool: Typed[RolloutPool], world: str, pools: dict[WorldKey, Pool]
    ) -> SandboxCounts:
        """Warm sandboxes are the world's, all RolloutPools share them; claimed and lost ones are the run's own."""
        known = pools.get(WorldKey(namespace, world))
        if known is None:
            return SandboxCounts(world=world)
        run = pool.item.spec.run or pool.item.metadata.name
        before = self._failed_before.setdefault(pool.uid, _failed(pool))
        problem = known.problem()
        return SandboxCounts(
            world=world,
            warm=known.num_warm,
            claimed=known.claims.held_by(run),
            failed=before.get(world, 0) + known.tally.failed_by_run.get(run, 0),
            starting=known.stock.count(Shelf.STARTING, Shelf.FAILED),
            waiting=known.claims.num_waiting,
            problem=f"{problem.kind}: {problem.message}"[:1024] if problem else None,
        )

    def _measure(self, pools: dict[WorldKey, Pool]) -> None:
        for key in self._measured.keys() - pools.keys():
            self._measured.pop(key).clear(key)
        for key, pool in pools.items():
            self._measured.setdefault(key, _Measured()).tell(key, pool)


@dataclass
class _Measured:
    """What the metrics say of a pool."""

    created: int = 0
    states: tuple[str, ...] = ()
    problem: str = ""

    def tell(self, key: WorldKey, pool: Pool) -> None:
        counts = {
            "warm": pool.num_warm,
            "starting": pool.stock.count(Shelf.STARTING, Shelf.FAILED),
            "claimed": pool.stock.count(Shelf.CLAIMED, Shelf.BINDING),
            "waiting": pool.claims.num_waiting,
        }
        for state, count in counts.items():
            SANDBOXES.labels(team=key.namespace, world=key.world, state=state).set(count)
        self.states = tuple(counts)
        CREATED.labels(team=key.namespace, world=key.world).inc(pool.tally.created - self.created)
        self.created = pool.tally.created
        problem = pool.problem()
        self._tell_problem(key, problem.kind.value if problem else "")

    def clear(self, key: WorldKey) -> None:
        """The pool is no more, and with it what it counted."""
        for state in self.states:
            SANDBOXES.remove(key.namespace, key.world, state)
        self._tell_problem(key, "")

    def _tell_problem(self, key: WorldKey, kind: str) -> None:
        if self.problem and self.problem != kind:
            PROBLEM.remove(key.namespace, key.world, self.problem)
        if kind:
            PROBLEM.labels(team=key.namespace, world=key.world, kind=kind).set(1)
        self.problem = kind


def _failed(pool: Typed[RolloutPool]) -> dict[str, int]:
    status = pool.item.status
    return {one.world: one.failed for one in status.sandboxes} if status else {}
