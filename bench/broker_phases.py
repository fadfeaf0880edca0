"""The broker in a cluster, and what is measured of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bench.claim_series import Series, cpu_seconds, delete_all, open_loop, timed, told_by, writes_served
from hack.cluster import Cluster
from hack.cluster.api_server import ApiServer
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.sandboxes import TRIAL_LABEL, WORLD_LABEL
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import AlreadyExistsError
from seatrial_operator.kube.resources import PODS, Object
from tests.brokers import BrokerClient, Brokers, Namespace

NAMESPACE = "bench"
WORLD = "acme"
BUSY_WORLD = "busy"
HELD_SECONDS = 2.0
BUSY_SECONDS = 0.2
BYSTANDERS = 100
SLICE_SECONDS = 0.5
"""Of claims, then of raw PATCHes, and so on."""


def warm_claims(size: int, rates: Sequence[float], count: int) -> int:
    """Claims at each rate from a pool that is not refilled meanwhile."""
    return min(count, size // len(rates))


@dataclass
class BrokerBench:
    """A running cluster with a broker."""

    cluster: Cluster
    server: ApiServer
    brokers: Brokers
    client: BrokerClient
    kube: KubeClient
    namespace: Namespace
    num_trials: int = 0
    p99_seconds: dict[str, float] = field(default_factory=dict)
    """Of claims, by what was measured."""

    async def warm(self, size: int) -> None:
        """Have a pool of this many warm ones, and none in use."""
        was, started = await self.client.stats(WORLD), time.perf_counter()
        missing = size - was.warm - was.starting
        self.keep(size)
        is_full = lambda stats: stats.warm >= size and stats.starting == 0 and stats.claimed == 0  # noqa: E731
        stats = await self.client.until(WORLD, is_full, 600)
        if missing > 0:
            made, seconds = stats.created - was.created, time.perf_counter() - started
            print(f"filled to {size}: {made} creates for {missing} pods ({made / missing:.3f} each), {seconds:.1f} s")

    def keep(self, size: int) -> None:
        """Keep this many warm from now on; those that are too many stay for a while."""
        self.namespace.pool("run", {"world": WORLD, "warmMin": size, "warmMax": 5000, "ceiling": 5000})

    async def claim(self, series: Series, number: int, held: float | None = None, world: str = WORLD) -> None:
        """One claim, held for a while, or for good."""
        trial, begun = f"trial-{number}", time.perf_counter()
        answer = await self.client.claim(world, trial, run=f"run-{number % 3}", seconds=300)
        if answer.WhichOneof("result") == "failure":
            series.failures[pb.FailureKind.Name(answer.failure.kind)] += 1
            return
        series.seconds.append(time.perf_counter() - begun)
        if held is not None:
            await asyncio.sleep(held)  # noqa: TID251  a bench
            await self.client.release(trial)

    async def claims(self, count: int, rate: float, held: float | None = None, world: str = WORLD) -> Series:
        """Claims at a rate; what callers saw."""
        series, first = Series(f"claims at {rate:g}/s"), self.take(count)
        await open_loop(count, rate, lambda number: self.claim(series, number, held, world), first)
        return series

    def take(self, count: int) -> int:
        """The first of so many trials that were never named before."""
        first, self.num_trials = self.num_trials, self.num_trials + count
        return first

    async def pod(self) -> Object:
        """What a sandbox is made of."""
        items, _ = await self.kube.list_at(PODS, NAMESPACE, f"{WORLD_LABEL}={WORLD},!{TRIAL_LABEL}")
        pod = next(item for item in items if "deletionTimestamp" not in item["metadata"])
        return {key: value for key, value in pod["spec"].items() if key != "nodeName"}

    async def bystanders(self) -> list[str]:
        """Pods like sandboxes that are nobody's."""
        spec = await self.pod()
        names = [f"bystander-{number}" for number in range(BYSTANDERS)]
        for name in names:
            manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            with suppress(AlreadyExistsError):
                await self.kube.create(PODS, NAMESPACE, manifest)
        return names

    async def side_by_side(self, count: int, rate: float) -> tuple[Series, Series]:
        """Claims and raw PATCHes at the same rate, taking turns."""
        raw, claims = Series(f"raw PATCH at {rate:g}/s"), Series(f"claims at {rate:g}/s")
        names = await self.bystanders()

        async def patch(number: int) -> None:
            metadata = {"annotations": {"bench.test/claimed-by": f"trial-{number}", "bench.test/run": "run-0"}}
            await self.kube.patch_metadata(PODS, NAMESPACE, names[number % len(names)], metadata)

        size, done = max(1, int(rate * SLICE_SECONDS)), 0
        while done < count:
            now = min(size, count - done)
            await open_loop(now, rate, lambda number: timed(raw, patch(number)), done)
            await open_loop(now, rate, lambda number: self.claim(claims, number), self.take(now))
            done += now
        return raw, claims

    async def measure_warm(self, rate: float, count: int) -> None:
        """Claims over a warm pool that is not refilled meanwhile."""
        broker = self.brokers.processes[-1].process.pid
        cpu = cpu_seconds(broker)
        raw, series = await self.side_by_side(count, rate)
        cpu_each = (cpu_seconds(broker) - cpu) * 1e3 / count
        self.p99_seconds[f"warm at {rate:g}/s"] = series.cuts()[98]
        print(raw.row())
        print(series.row())
        print(f"  the broker adds {series.over(raw)}; its CPU is {cpu_each:.1f} ms a claim")

    async def measure_refilled(self, size: int, rate: float, count: int) -> None:
        """Claims from a pool that is refilled meanwhile; what all of it writes."""
        before, created = writes_served(self.server), (await self.client.stats(WORLD)).created
        broker = self.brokers.processes[-1].process.pid
        cpu = cpu_seconds(broker)
        series = await self.claims(count, rate, HELD_SECONDS)
        await self.warm(size)
        writes = writes_served(self.server) - before
        cpu_each = (cpu_seconds(broker) - cpu) * 1e3 / count
        made = (await self.client.stats(WORLD)).created - created
        series.name = f"with refill, {series.name}"
        self.p99_seconds[f"refilled at {rate:g}/s"] = series.cuts()[98]
        print(series.row())
        print(f"  broker's CPU {cpu_each:.1f} ms for claim, refill and release; {made} creates for {count} claims")
        print(f"  writes a claim with refill and release (KWOK deletes twice) {told_by(writes, count)}")

    async def measure_killed(self, size: int, rate: float, count: int) -> None:
        """Claims while the broker is killed twice."""
        kills = {count // 4, count // 2}
        series, first = Series(f"killed twice, claims at {rate:g}/s"), self.take(count)

        async def one(number: int) -> None:
            if number - first in kills:
                self.brokers.processes[-1].kill()
                self.brokers.start()
            await self.claim(series, number)

        await open_loop(count, rate, one, first)
        holders = Counter(self.namespace.holders(WORLD).values())
        served = sum(holders[f"trial-{number}"] == 1 for number in range(first, first + count))
        print(series.row())
        print(f"  {served} of {count} trials hold exactly one sandbox")
        await self.release(first)
        await self.warm(size)

    async def measure_exhausted(self, count: int, rate: float) -> None:
        """Ten times as many claims as sandboxes."""
        size = max(1, count // 10)
        self.namespace.world(BUSY_WORLD)
        self.namespace.pool("busy", {"world": BUSY_WORLD, "warmMin": size, "warmMax": size, "ceiling": size})
        await self.client.until(BUSY_WORLD, lambda stats: stats.warm == size, 600)
        series = await self.claims(count, rate, BUSY_SECONDS, BUSY_WORLD)
        series.name = f"exhausted, {size} for {count} at {rate:g}/s"
        made = (await self.client.stats(BUSY_WORLD)).created
        print(series.row())
        print(f"  {made} creates for {count} claims")

    async def release(self, first: int) -> None:
        """Give back what trials from this one on hold."""
        for number in range(first, self.num_trials):
            await self.client.release(f"trial-{number}")

    async def measure(self, size: int, rates: Sequence[float], count: int) -> None:
        """All that is to be measured with a pool of a size."""
        await self.warm(size)
        await self.bystanders()
        self.keep(0)
        first = self.num_trials
        for rate in rates:
            await self.measure_warm(rate, warm_claims(size, rates, count))
        await self.release(first)
        await self.warm(size)
        for rate in rates:
            await self.measure_refilled(size, rate, count)
        await self.measure_killed(size, max(rates), count)
        await self.measure_exhausted(count, max(rates))

    async def clear(self) -> None:
        """Have no sandboxes any more, and no broker that makes new ones."""
        for world, pool in ((WORLD, "run"), (BUSY_WORLD, "busy")):
            self.cluster.kubectl("-n", NAMESPACE, "delete", "rolloutpool", pool)
            self.cluster.kubectl("-n", NAMESPACE, "delete", "worldimage", world, "--wait=false")
        self.brokers.end()
        await delete_all(self.server, PODS, NAMESPACE)
