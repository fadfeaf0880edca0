"""Trials' side of the broker: a real broker on a real API server, with pods that KWOK plays."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import Cluster
from hack.cluster.layout import ROOT
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.sandbox_token import Phase
from seatrial_api.sandboxes import BROKER_TOKEN_VARIABLE, BROKER_VARIABLE, RUN_VARIABLE, STATE_LABEL
from seatrial_rollout.environment.broker import BrokeredSandbox, BrokerSource, announce
from seatrial_rollout.environment.broker_access import BrokerAccess
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_sandbox.errors import SandboxDiedError, SandboxStartError
from tests.brokers import Brokers, Namespace, broker_config
from tests.ports import free_port
from tests.trial_hosts import trial_host

WORLD = "acme"
LEASE_SECONDS = 6
WAIT_SECONDS = 90.0


@dataclass
class Place:
    """A namespace with a world, whose broker can be killed and answers where it did before."""

    namespace: Namespace
    brokers: Brokers
    access: BrokerAccess

    def source(self, label: str = "trial-1", wait_seconds: float = WAIT_SECONDS) -> BrokerSource:
        """A trial's."""
        return BrokerSource(self.access, label=label, wait_seconds=wait_seconds)

    def trial_of(self, sandbox: BrokeredSandbox) -> str:
        """Who holds a pod, by its label; nobody if it is on its way out."""
        return self.namespace.holders(WORLD).get(sandbox.told.name, "")

    def num_warm(self) -> int:
        """Pods that are ready and nobody's."""
        pods = self.namespace.pods(WORLD, f"{STATE_LABEL}=warm")
        ready = [one for pod in pods for one in pod["status"].get("conditions", ()) if one["type"] == "Ready"]
        return sum(one["status"] == "True" for one in ready)

    def end(self, sandbox: BrokeredSandbox, **status: Any) -> None:
        """Let a pod end as a kubelet tells it."""
        ended = json.dumps({"status": {"phase": "Failed", **status}})
        patch = ["patch", "pod", sandbox.told.name, "--subresource=status", "--type=merge", "-p", ended]
        self.namespace.cluster.kubectl("-n", self.namespace.name, *patch)

    async def until_nothing_is_held(self) -> None:
        """Wait until no trial has a sandbox."""
        deadline = Deadline.after(180)
        while held := self.namespace.holders(WORLD):
            deadline.check(f"sandboxes to be given back; there are {held}")
            await SYSTEM_CLOCK.sleep(0.2)


@pytest.fixture(scope="module")
def place(controllers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("broker")
    controllers.apply_crds(ROOT / "crds")
    nodes = controllers.fake_nodes(1, cpu="500", memory="2Ti", **{"ephemeral-storage": "9Ti"})
    namespace = Namespace(controllers, "claiming")
    namespace.make()
    namespace.world(WORLD)
    namespace.pool("run", {"world": WORLD, "warmMin": 1, "warmMax": 4, "ceiling": 8})
    config = broker_config(port=free_port(), leaseSeconds=LEASE_SECONDS)
    config["namespaces"] = [namespace.name]
    config["sandboxes"]["lease"]["name"] = "broker-claiming"
    brokers = Brokers(folder, controllers.kubeconfig, config)
    token = folder / "token"
    token.write_text(namespace.token())
    try:
        brokers.start()
        yield Place(namespace, brokers, BrokerAccess(f"127.0.0.1:{config['sandboxes']['port']}", "run", token))
    finally:
        brokers.end()
        namespace.remove()
        controllers.kubectl("delete", "nodes", *nodes, "--wait=false")


async def test_a_trial_holds_its_sandbox_past_the_lease_and_gives_it_back(place: Place) -> None:
    async with place.source("train-7-t00-a1") as source:
        sandbox = await source.claim(WORLD, "trial__env")
        assert sandbox.trial.startswith("train-7-t00-a1-")
        assert await source.claim(WORLD, "trial__env") is sandbox
        assert sandbox.address.endswith(":8091")
        first = sandbox.told
        await SYSTEM_CLOCK.sleep(LEASE_SECONDS + 2)
        assert place.trial_of(sandbox) == sandbox.trial
        assert sandbox.told is not first  # with tokens that hold longer
        assert sandbox.token(Phase.AGENT) != sandbox.token(Phase.VERIFY)
        await source.release(sandbox)
        await place.until_nothing_is_held()


async def test_another_source_of_the_same_name_gets_another_sandbox(place: Place) -> None:
    async with place.source() as one, place.source() as other:
        first, second = await one.claim(WORLD, "trial"), await other.claim(WORLD, "trial")
        assert first.told.name != second.told.name
    await place.until_nothing_is_held()  # leaving the context gave them back


async def test_a_broker_killed_twice_costs_time_and_no_sandbox(place: Place) -> None:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        sources = [await stack.enter_async_context(place.source(f"t-{number}")) for number in range(8)]
        claims = []
        for number, source in enumerate(sources):
            claims.append(tasks.create_task(source.claim(WORLD, "trial")))
            if number in {2, 5}:
                await SYSTEM_CLOCK.sleep(0.05)
                place.brokers.processes[-1].kill()
                place.brokers.start()
        sandboxes = [await claim for claim in claims]
        assert {one.told.name: one.trial for one in sandboxes} == place.namespace.holders(WORLD)
        await SYSTEM_CLOCK.sleep(LEASE_SECONDS + 2)
        assert [one.why for one in sandboxes] == [""] * 8
    await place.until_nothing_is_held()


async def test_a_sandbox_that_dies_says_why_to_whoever_calls_it_and_is_replaced(place: Place) -> None:
    async with place.source() as source:
        sandbox = await source.claim(WORLD, "trial")
        assert sandbox.token(Phase.AGENT)
        place.end(sandbox, reason="Evicted", message="The node was low on resource: memory.")
        deadline = Deadline.after(180)
        while not (why := await sandbox.why_lost()):
            deadline.check("the word of the loss")
        assert "Evicted: " in why
        assert "low on resource" in why
        with pytest.raises(SandboxDiedError, match="low on resource"):
            sandbox.token(Phase.AGENT)
        another = await source.claim(WORLD, "trial")
        assert another.told.name != sandbox.told.name
        assert place.namespace.holders(WORLD) == {another.told.name: another.trial}
    await place.until_nothing_is_held()


async def test_claims_wait_for_a_sandbox_until_their_deadline_and_then_say_what_for(place: Place) -> None:
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(place.source(f"t-{number}")) for number in range(8)]
        held = [await source.claim(WORLD, "trial") for source in sources]
        late = await stack.enter_async_context(place.source("late", wait_seconds=2))
        with pytest.raises(SandboxStartError, match=r"Deadline: .*all of which are in use"):
            await late.claim(WORLD, "trial")
        next_one = await stack.enter_async_context(place.source("next"))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(next_one.claim(WORLD, "trial"))
            await SYSTEM_CLOCK.sleep(0.5)
            assert not waiting.done()
            await sources[0].release(held[0])
        assert waiting.result().told.name not in {one.told.name for one in held}
    await place.until_nothing_is_held()


async def test_a_claim_that_is_cancelled_holds_nothing(place: Place) -> None:
    broken_off = 0
    async with place.source() as source:
        for number in range(8):
            try:
                async with asyncio.timeout(0.001 * number):
                    await source.release(await source.claim(WORLD, f"trial-{number}"))
            except TimeoutError:
                broken_off += 1
        await place.until_nothing_is_held()
    assert broken_off


async def test_a_token_is_read_anew_for_every_call(place: Place, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("expired")
    access = BrokerAccess(place.access.address, "run", token)
    async with BrokerSource(access, label="t", wait_seconds=WAIT_SECONDS) as source, asyncio.TaskGroup() as tasks:
        claim = tasks.create_task(source.claim(WORLD, "trial"))
        await SYSTEM_CLOCK.sleep(0.5)
        assert not claim.done()
        token.write_text(place.namespace.token())
        assert (await claim).told.name
    await place.until_nothing_is_held()


async def test_a_world_that_is_not_there_and_a_missing_token_are_told(place: Place, tmp_path: Path) -> None:
    async with place.source(wait_seconds=2) as source:
        with pytest.raises(SandboxStartError, match=r"World: .*there is no WorldImage claiming/nowhere"):
            await source.claim("nowhere", "trial")
    with pytest.raises(SandboxStartError, match="cannot read the token"):
        await announce(BrokerAccess(place.access.address, "run", tmp_path / "gone"), WORLD, 1)


async def test_the_pool_follows_what_hosts_say_of_trials_to_come(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    access = place.access
    told = {BROKER_VARIABLE: access.address, RUN_VARIABLE: access.run, BROKER_TOKEN_VARIABLE: str(access.token_file)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    async with trial_host(HostConfig()) as host:
        for num_trials, wanted in ((3, 3), (100, 4), (0, 1), (2, 2)):  # between the pool's bounds
            await host.expect({WORLD: num_trials})
            deadline = Deadline.after(120)
            while (num_warm := place.num_warm()) != wanted:
                deadline.check(f"{wanted} warm sandboxes for {num_trials} trials; there are {num_warm}")
                await SYSTEM_CLOCK.sleep(0.2)
