"""Brokers as processes of their own, the cluster that they act on, and a client that outlives them."""

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from hack.cluster import Cluster
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.protos.broker_pb2_grpc import SandboxBrokerStub
from seatrial_api.sandboxes import BROKER_AUDIENCE, TRIAL_LABEL, WORLD_LABEL
from seatrial_operator.kube.client import connect
from seatrial_operator.kube.resources import PODS
from tests.operator_process import OperatorProcess, start_operator

DIGEST = f"sha256:{'a' * 64}"
IMAGE = "registry.test/worlds/acme:v1"
MODULE = "seatrial_operator.sandboxes"
_KIND = {"apiVersion": "seatrial.dev/v1alpha1"}

type Object = dict[str, Any]


def broker_config(**sandboxes: Any) -> dict[str, Any]:
    """Settings that let a test see soon what takes minutes in a cluster."""
    lease = {"namespace": "default", "durationSeconds": 2, "renewSeconds": 1.5, "retrySeconds": 0.2}
    settings = {"port": 0, "lease": {"name": "seatrial-broker", **lease}, "surplusSeconds": 3, "statusSeconds": 0.5}
    return {"healthPort": 0, "metricsPort": 0, "resyncSeconds": 20, "sandboxes": {**settings, **sandboxes}}


@dataclass
class Namespace:
    """A namespace with worlds, pools and sandboxes."""

    cluster: Cluster
    name: str

    def make(self) -> None:
        """Make it; Kubernetes itself refuses pods there that ask for more than sandboxes may have."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}})
        self.cluster.kubectl("-n", self.name, "wait", "--for=create", "serviceaccount/default", "--timeout=180s")

    def remove(self) -> None:
        """Delete it with all that is in it; does not wait."""
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    def world(self, name: str, *, is_resolved: bool = True, **spec: Any) -> None:
        """A WorldImage, resolved as the operator does it."""
        metadata = {"name": name, "namespace": self.name}
        self.cluster.apply({**_KIND, "kind": "WorldImage", "metadata": metadata, "spec": {"image": IMAGE, **spec}})
        if is_resolved:
            status = json.dumps({"status": {"image": spec.get("image", IMAGE), "digest": DIGEST}})
            patch = ["patch", "worldimage", name, "--subresource=status", "--type=merge", "-p", status]
            self.cluster.kubectl("-n", self.name, *patch)

    def pool(self, name: str, *sandboxes: Object) -> None:
        """A RolloutPool that keeps sandboxes."""
        spec = {"run": name, "sandboxes": list(sandboxes)}
        metadata = {"name": name, "namespace": self.name}
        self.cluster.apply({**_KIND, "kind": "RolloutPool", "metadata": metadata, "spec": spec})

    def token(self, audience: str = BROKER_AUDIENCE, account: str = "default") -> str:
        """A service account's token."""
        return self.cluster.kubectl("-n", self.name, "create", "token", account, f"--audience={audience}").strip()

    def get(self, kind: str, name: str) -> Object:
        """An object."""
        found: Object = json.loads(self.cluster.kubectl("-n", self.name, "get", kind, name, "-o", "json"))
        return found

    def pods(self, world: str, *labels: str) -> list[Object]:
        """Sandboxes of a world that are not on their way out."""
        selector = ",".join([f"{WORLD_LABEL}={world}", *labels])
        found = json.loads(self.cluster.kubectl("-n", self.name, "get", "pods", "-l", selector, "-o", "json"))
        return [item for item in found["items"] if "deletionTimestamp" not in item["metadata"]]

    def holders(self, world: str) -> dict[str, str]:
        """Trial by sandbox.

        Raises:
            AssertionError: if a trial holds two.
        """
        pods = self.pods(world, TRIAL_LABEL)
        held = {pod["metadata"]["name"]: pod["metadata"]["labels"][TRIAL_LABEL] for pod in pods}
        assert len(set(held.values())) == len(held), f"a trial holds two sandboxes: {held}"
        return held


@asynccontextmanager
async def history(namespace: Namespace, world: str) -> AsyncIterator[dict[str, set[str]]]:
    """Trials that each sandbox of a world was ever claimed for, by its uid; complete once the block has ended."""
    os.environ["KUBECONFIG"] = str(namespace.cluster.kubeconfig)
    told: dict[str, set[str]] = {}
    selector = f"{WORLD_LABEL}={world}"
    async with connect("tests") as kube:
        _, version = await kube.list_at(PODS, namespace.name)
        yield told
        pods, _ = await kube.list_at(PODS, namespace.name, selector)
        mark = {"annotations": {"tests.seatrial.dev/seen": "all"}}
        last = await kube.patch_metadata(PODS, namespace.name, pods[0]["metadata"]["name"], mark)
        async for _, pod in kube.watch(PODS, namespace.name, version, selector):
            metadata = pod["metadata"]
            if trial := metadata["labels"].get(TRIAL_LABEL):
                told.setdefault(metadata["uid"], set()).add(trial)
            if metadata["resourceVersion"] == last["metadata"]["resourceVersion"]:
                return


@dataclass
class Brokers:
    """Brokers of one configuration, of which one serves."""

    folder: Path
    kubeconfig: Path
    config: dict[str, Any]
    processes: list[OperatorProcess] = field(default_factory=list)

    def start(self) -> OperatorProcess:
        """Start one more."""
        place = self.folder / f"broker-{len(self.processes)}"
        place.mkdir(exist_ok=True)
        started = start_operator(place, self.kubeconfig, self.config, module=MODULE)
        self.processes.append(started)
        return started

    def address(self) -> str | None:
        """Where the broker listens that lives and began to do so last; none if none does."""
        living = [one for one in self.processes if one.process.poll() is None]
        found = [(record["timestamp"], record["port"]) for one in living for record in said(one, "listening")]
        return f"127.0.0.1:{max(found)[1]}" if found else None

    def end(self) -> None:
        """Kill all."""
        for one in self.processes:
            if one.process.poll() is None:
                one.kill()


def said(process: OperatorProcess, event: str) -> list[dict[str, Any]]:
    """What a process logged under this text."""
    return [record for record in process.records() if record.get("event") == event]


@dataclass
class BrokerClient:
    """Asks whichever broker serves, again and again while none does."""

    address: Callable[[], str | None]
    token: str
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)
    _known: str | None = None
    """Where a broker answered last."""

    async def call(self, method: str, request: Any, seconds: float = 180) -> Any:
        """One call, repeated while there is no broker to answer it."""
        deadline = Deadline.after(seconds)
        while True:
            deadline.check(f"a broker that answers {method}")
            try:
                return await self.once(method, request, deadline.remaining)
            except grpc.aio.AioRpcError as exc:
                if exc.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
                    raise
                self._known = None
            await SYSTEM_CLOCK.sleep(0.1)

    async def once(self, method: str, request: Any, seconds: float = 180) -> Any:
        """One call."""
        address = self._known = self._known or self.address()
        if address is None:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        return await getattr(self.stub(address), method)(request, metadata=self.metadata, timeout=seconds)

    def stub(self, address: str) -> Any:
        """The calls of the broker at an address."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address)
        return SandboxBrokerStub(self._channels[address])

    @property
    def metadata(self) -> Sequence[tuple[str, str]]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.token}"),)

    async def claim(self, world: str, trial: str, *, run: str = "run", seconds: float = 180, replaces: str = "") -> Any:
        """A claim's answer."""
        request = pb.ClaimRequest(world=world, run=run, trial=trial, deadline_seconds=seconds, replaces=replaces)
        return await self.call("Claim", request, seconds + 30)

    async def release(self, trial: str) -> None:
        """Give back."""
        await self.call("Release", pb.ReleaseRequest(trial=trial))

    async def stats(self, world: str) -> Any:
        """A world's figures."""
        answer = await self.call("Stats", pb.StatsRequest())
        return next((one for one in answer.worlds if one.world == world), pb.WorldStats(world=world))

    async def until(self, world: str, is_reached: Callable[[Any], bool], seconds: float = 180) -> Any:
        """Wait for a world's figures."""
        deadline = Deadline.after(seconds)
        while not is_reached(stats := await self.stats(world)):
            deadline.check(f"the broker to come to where the test wants it; it says {stats}")
            await SYSTEM_CLOCK.sleep(0.1)
        return stats


@asynccontextmanager
async def broker_client(address: Callable[[], str | None], token: str) -> AsyncIterator[BrokerClient]:
    """A client whose connections end with the block."""
    client = BrokerClient(address, token)
    try:
        yield client
    finally:
        for channel in client._channels.values():
            await channel.close()
