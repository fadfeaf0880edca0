"""kubernetes-sigs/agent-sandbox on the same API server, asked for the same sandboxes.

Its controller and its CRDs are the user's to bring:

    git clone https://github.com/kubernetes-sigs/agent-sandbox && cd agent-sandbox
    CGO_ENABLED=0 go build -o controller ./cmd/agent-sandbox-controller
    python -m bench.broker_claims --peer …/agent-sandbox/controller --peer-crds …/agent-sandbox/k8s/crds

Only its newest API version is used, so its CRDs are applied without their conversion webhook.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.claim_series import Series, cpu_seconds, delete_all, open_loop, told_by, writes_served
from hack.cluster import Cluster
from hack.cluster.api_server import ApiServer, is_ready
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import PODS, Object, Resource

NAMESPACE = "bench-peer"
QUIET = (
    "--sandbox-warm-pool-replenish-delay=1h",
    "--disable-claim-events",
    "--disable-claim-observability-annotations",
    "--separate-watch-connection",
    "--api-connections=4",
)
"""Flags with which claims cost it least: no refill, no events, no annotations, connections of its own. They are for a
pool that is full: it would not fill one for an hour."""
_GROUP, _VERSION = "extensions.agents.x-k8s.io", "v1beta1"
_CLAIMS = Resource(_GROUP, _VERSION, "sandboxclaims", "SandboxClaim")
_POOLS = Resource(_GROUP, _VERSION, "sandboxwarmpools", "SandboxWarmPool")
_TEMPLATES = Resource(_GROUP, _VERSION, "sandboxtemplates", "SandboxTemplate")
_SANDBOXES = Resource("agents.x-k8s.io", _VERSION, "sandboxes", "Sandbox")
_POOL = "acme"
_CLAIM_SECONDS = 60.0
_FILL_SECONDS = 400.0


@dataclass
class Controller:
    """The process."""

    binary: Path
    kubeconfig: Path
    log: Path
    _process: asyncio.subprocess.Process | None = None

    async def start(self, *flags: str) -> None:
        """Start it, in place of the one that runs."""
        await self.end()
        words = ("--extensions", "--leader-elect=false", "--enable-webhook=false", *flags)
        addresses = ("--metrics-bind-address=0", "--health-probe-bind-address=0")
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(self.binary), *words, *addresses, env=environment, stdout=log, stderr=log
            )

    async def end(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    def cpu_seconds(self) -> float:
        """CPU that it has used so far."""
        return cpu_seconds(self._process.pid) if self._process else 0.0


@dataclass
class Peer:
    """One pool of agent-sandbox."""

    kube: KubeClient
    server: ApiServer
    controller: Controller
    _ready: dict[str, asyncio.Event] = field(default_factory=dict)
    _num_claims: int = 0

    async def fill(self, size: int, pod: Object) -> None:
        """Have a pool of this many warm ones, each a pod of this spec."""
        template = {"podTemplate": {"spec": pod}, "networkPolicyManagement": "Unmanaged", "service": False}
        await self._apply(_TEMPLATES, template)
        started, before = time.perf_counter(), writes_served(self.server)
        await self._apply(_POOLS, {"replicas": size, "sandboxTemplateRef": {"name": _POOL}})
        await self.warm(size)
        writes = writes_served(self.server) - before
        print(f"peer: {size} warm in {time.perf_counter() - started:.1f} s; writes a pod {told_by(writes, size)}")

    async def warm(self, size: int) -> None:
        """Wait until so many are warm."""
        deadline = Deadline.after(_FILL_SECONDS)
        while (await self.kube.get(_POOLS, NAMESPACE, _POOL)).get("status", {}).get("readyReplicas", 0) < size:
            deadline.check(f"agent-sandbox to have {size} warm")
            await SYSTEM_CLOCK.sleep(0.2)

    async def claims(self, count: int, rate: float, held: float, *, name: str) -> Series:
        """Claims at a rate, each from its creation to the news that it is ready, each deleted after a while."""
        series = Series(name)
        first, self._num_claims = self._num_claims, self._num_claims + count

        async def one(number: int) -> None:
            claim, begun = f"claim-{number}", time.perf_counter()
            is_there = self._ready[claim] = asyncio.Event()
            try:
                async with asyncio.timeout(_CLAIM_SECONDS):
                    await self._create(claim)
                    await is_there.wait()
            except TimeoutError:
                series.failures[f"not ready in {_CLAIM_SECONDS:.0f} s"] += 1
            else:
                series.seconds.append(time.perf_counter() - begun)
                await asyncio.sleep(held)  # noqa: TID251  a bench
            await self.kube.delete(_CLAIMS, NAMESPACE, claim)

        before, cpu = writes_served(self.server), self.controller.cpu_seconds()
        await open_loop(count, rate, one, first)
        cpu_each = (self.controller.cpu_seconds() - cpu) * 1e3 / count
        print(series.row())
        writes = writes_served(self.server) - before
        print(f"  its CPU {cpu_each:.1f} ms a claim; writes a claim {told_by(writes, count)}")
        return series

    async def watch(self) -> None:
        """Hear which claims are ready, until cancelled."""
        _, version = await self.kube.list_at(_CLAIMS, NAMESPACE)
        while True:
            async for _, item in self.kube.watch(_CLAIMS, NAMESPACE, version):
                version = item["metadata"]["resourceVersion"]
                if item["metadata"].get("name") in self._ready and is_ready(item):
                    self._ready[item["metadata"]["name"]].set()

    async def _create(self, name: str) -> None:
        claim = {"apiVersion": _CLAIMS.api_version, "kind": _CLAIMS.kind, "metadata": {"name": name}}
        await self.kube.create(_CLAIMS, NAMESPACE, {**claim, "spec": {"warmPoolRef": {"name": _POOL}}})

    async def _apply(self, resource: Resource, spec: dict[str, Any]) -> None:
        await self.kube.apply(resource, NAMESPACE, {"metadata": {"name": _POOL}, "spec": spec})


@asynccontextmanager
async def agent_sandbox(controller: Controller, kube: KubeClient, server: ApiServer) -> AsyncIterator[Peer]:
    """A controller with its defaults that ends with the block, and all that it made with it."""
    peer = Peer(kube, server, controller)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(peer.watch())
        try:
            await controller.start()
            yield peer
        finally:
            watching.cancel()
            await controller.end()
            for resource in (_CLAIMS, _POOLS, _SANDBOXES, PODS):
                await delete_all(server, resource, NAMESPACE)


def apply_crds(cluster: Cluster, folder: Path) -> None:
    """Apply its CRDs, each version of which stays as it is sent."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    for crd in crds:
        crd["spec"]["conversion"] = {"strategy": "None"}
    cluster.apply(*crds)
    names = [f"crd/{crd['metadata']['name']}" for crd in crds]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
