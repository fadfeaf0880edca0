"""What a claim costs: the broker against one raw PATCH and against agent-sandbox, on a real API server with KWOK pods.

    python -m bench.broker_claims [--pools 1000] [--rates 20 50 100 200] [--claims 400]
                                  [--peer CONTROLLER --peer-crds FOLDER]

Claims arrive in an open loop, each for a trial of its own.

Warm: the pool is not refilled meanwhile. Slices of claims take turns with slices of raw PATCHes of the same size to
bystanders of the same kind, from the same process over a client like the broker's: the difference is what it adds.

Refilled: the pool is refilled while it is claimed from and given back to; the API server itself counts the writes.

Killed: the broker is killed twice while claims arrive; who holds what is then read from the pods.

Exhausted: a tenth of the sandboxes that are asked for, each held for 0.2 s.

The peer is asked the same, as it comes and with the flags with which its claims cost least. `bench.agent_sandbox`
says how to get it; without it its rows are left out.
"""

import argparse
import asyncio
import gc
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.agent_sandbox import NAMESPACE as PEER_NAMESPACE
from bench.agent_sandbox import QUIET, Controller, Peer, agent_sandbox
from bench.agent_sandbox import apply_crds as apply_peer_crds
from bench.broker_phases import BUSY_SECONDS, HELD_SECONDS, NAMESPACE, WORLD, BrokerBench, warm_claims
from hack.cluster import Cluster, Grade
from hack.cluster.api_server import ApiServer
from hack.cluster.layout import ROOT
from seatrial_operator.kube.client import connect
from seatrial_operator.kube.resources import Object
from tests.brokers import Brokers, Namespace, broker_client, broker_config

NODES = 10
PODS_PER_NODE = "1000"


@dataclass(frozen=True)
class PeerParts:
    """What the user brought of agent-sandbox."""

    controller: Path
    crds: Path


@dataclass(frozen=True)
class Options:
    """What is to be measured."""

    pools: Sequence[int]
    rates: Sequence[float]
    claims: int
    peer: PeerParts | None


async def main(options: Options) -> None:
    """Measure and print."""
    gc.freeze()  # so that the garbage of the bench itself is not taken for latency
    with Cluster.start(Grade.CONTROLLERS) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.apply_crds(ROOT / "crds")
        nodes = {"pods": PODS_PER_NODE, "ephemeral-storage": "99Ti"}
        cluster.fake_nodes(NODES, cpu="2000", memory="8Ti", **nodes)
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        Namespace(cluster, NAMESPACE).make()
        if options.peer is not None:
            Namespace(cluster, PEER_NAMESPACE).make()
            apply_peer_crds(cluster, options.peer.crds)
        for size in options.pools:
            await measure(cluster, Path(folder), options, size)


async def measure(cluster: Cluster, folder: Path, options: Options, size: int) -> None:
    """A pool of a size, first the broker's and then the peer's."""
    server, namespace = ApiServer(_url(cluster), cluster.layout.pki), Namespace(cluster, NAMESPACE)
    namespace.world(WORLD)
    brokers = Brokers(folder, cluster.kubeconfig, _config())
    try:
        brokers.start()
        async with broker_client(brokers.address, namespace.token()) as client, connect("bench") as kube:
            bench = BrokerBench(cluster, server, brokers, client, kube, namespace)
            print(f"--- the broker, a pool of {size}")
            await bench.measure(size, options.rates, options.claims)
            pod = await bench.pod()
            await bench.clear()
            if options.peer is not None:
                await measure_peer(bench, options.peer, pod, options, size)
    except Exception:
        print(brokers.processes[-1].log.read_text()[-3000:])
        raise
    finally:
        brokers.end()


async def measure_peer(bench: BrokerBench, parts: PeerParts, pod: Object, options: Options, size: int) -> None:
    """The same of agent-sandbox."""
    log = bench.brokers.folder / "agent-sandbox.log"
    controller = Controller(parts.controller, bench.cluster.kubeconfig, log)

    async def claims(peer: Peer, kind: str, rate: float, count: int) -> None:
        series = await peer.claims(count, rate, HELD_SECONDS, name=f"peer, {kind}, claims at {rate:g}/s")
        if len(series.seconds) > 1:
            ours, theirs = bench.p99_seconds[f"{kind} at {rate:g}/s"], series.cuts()[98]
            print(f"  its p99 is {theirs / ours:.1f} times the broker's {ours * 1e3:.1f} ms")

    print(f"--- agent-sandbox as it comes, a pool of {size}")
    async with agent_sandbox(controller, bench.kube, bench.server) as peer:
        await peer.fill(size, pod)
        for rate in options.rates:
            await claims(peer, "refilled", rate, options.claims)
            await peer.warm(size)
        print(f"--- agent-sandbox, a pool of {size}, {' '.join(QUIET)}")
        await controller.start(*QUIET)
        await peer.claims(2, 1, 0.0, name="peer, the first claims after its restart")
        for rate in options.rates:
            await claims(peer, "warm", rate, warm_claims(size, options.rates, options.claims))
    rate = max(options.rates)
    print(f"--- agent-sandbox as it comes, a pool of {options.claims // 10}")
    async with agent_sandbox(controller, bench.kube, bench.server) as peer:
        await peer.fill(options.claims // 10, pod)
        await peer.claims(options.claims, rate, BUSY_SECONDS, name=f"peer, exhausted at {rate:g}/s")


def _config() -> dict[str, Any]:
    lease = {"name": "bench", "namespace": "default", "durationSeconds": 10, "renewSeconds": 8, "retrySeconds": 0.5}
    return broker_config(surplusSeconds=900, statusSeconds=5, lease=lease)


def _url(cluster: Cluster) -> str:
    told = json.loads(cluster.kubectl("config", "view", "-o", "json"))
    return str(told["clusters"][0]["cluster"]["server"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, nargs="+", default=[1000])
    parser.add_argument("--rates", type=float, nargs="+", default=[20, 50, 100, 200])
    parser.add_argument("--claims", type=int, default=400)
    parser.add_argument("--peer", type=Path, help="agent-sandbox's controller")
    parser.add_argument("--peer-crds", type=Path, help="folder of agent-sandbox's CRDs")
    told = parser.parse_args()
    if (told.peer is None) is not (told.peer_crds is None):
        parser.error("--peer and --peer-crds go together")
    brought = PeerParts(told.peer, told.peer_crds) if told.peer else None
    asyncio.run(main(Options(told.pools, told.rates, told.claims, brought)))
