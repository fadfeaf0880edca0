"""The broker on a real API server, with pods that KWOK plays."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import grpc
import jwt
import pytest

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from hack.cluster.layout import ROOT
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.sandbox_token import Phase, SandboxClaims
from tests.api_proxy import ApiProxy, api_proxy
from tests.brokers import DIGEST, BrokerClient, Brokers, Namespace, broker_client, broker_config, history, said

TEAM = "team"


@pytest.fixture(scope="module")
def cluster(controllers: Cluster) -> Iterator[Cluster]:
    """A cluster with nodes and our kinds."""
    controllers.apply_crds(ROOT / "crds")
    nodes = controllers.fake_nodes(3, cpu="500", memory="2Ti", **{"ephemeral-storage": "9Ti"})
    yield controllers
    controllers.kubectl("delete", "nodes", *nodes, "--wait=false")


@pytest.fixture
def team(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    namespace = Namespace(cluster, f"{TEAM}-{abs(hash(request.node.name)) % 10**8}")
    namespace.make()
    yield namespace
    namespace.remove()


@contextmanager
def running(folder: Path, kubeconfig: Path, namespace: Namespace, **settings: object) -> Iterator[Brokers]:
    config = broker_config(**settings)
    config["namespaces"] = [namespace.name]
    config["sandboxes"]["lease"]["name"] = f"broker-{namespace.name}"
    made = Brokers(folder, kubeconfig, config)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def brokers(cluster: Cluster, team: Namespace, tmp_path: Path) -> Iterator[Brokers]:
    """No broker yet."""
    with running(tmp_path, cluster.kubeconfig, team) as made:
        yield made


@pytest.fixture
async def client(brokers: Brokers, team: Namespace) -> AsyncIterator[BrokerClient]:
    """A trial host's."""
    async with broker_client(brokers.address, team.token()) as made:
        yield made


@pytest.fixture
def proxy(cluster: Cluster, tmp_path: Path) -> Iterator[ApiProxy]:
    with api_proxy(cluster.kubeconfig, tmp_path) as made:
        yield made


async def test_a_trial_gets_a_warm_sandbox_with_tokens_for_it_alone(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 3, "warmMax": 8, "ceiling": 10})
    brokers.start()
    await client.until("acme", lambda stats: stats.warm == 3)
    sandbox = (await client.claim("acme", "trial-1")).sandbox
    pod = team.get("pod", sandbox.name)
    assert pod["metadata"]["labels"]["seatrial.dev/trial"] == "trial-1"
    assert pod["metadata"]["labels"]["seatrial.dev/sandbox-state"] == "claimed"
    assert sandbox.address == f"{pod['status']['podIP']}:8091"
    assert sandbox.image == f"registry.test/worlds/acme@{DIGEST}"
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    key = json.loads(env["SEATRIAL_SANDBOXD"] or "")["publicKey"]
    for token, phase in ((sandbox.agent_token, Phase.AGENT), (sandbox.verify_token, Phase.VERIFY)):
        told = jwt.decode(token, key, algorithms=["EdDSA"], audience=pod["metadata"]["uid"])
        claims = SandboxClaims.model_validate(told)
        assert (claims.trial, claims.phase) == ("trial-1", phase)
    again = (await client.claim("acme", "trial-1")).sandbox
    assert again.name == sandbox.name
    await client.until("acme", lambda stats: stats.warm == 3)
    assert len(team.pods("acme")) == 4
    await client.release("trial-1")
    await client.until("acme", lambda stats: stats.claimed == 0)
    assert sandbox.name not in [one["metadata"]["name"] for one in team.pods("acme")]


async def test_prefetch_fills_and_empties_a_pool_within_its_bounds(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMax": 6})
    brokers.start()
    answer = await client.call("Prefetch", pb.PrefetchRequest(world="acme", run="run", count=50))
    assert answer.target == 6
    stats = await client.until("acme", lambda stats: stats.warm == 6)
    assert stats.created == 6
    await client.call("Prefetch", pb.PrefetchRequest(world="acme", run="run", count=0))
    await client.until("acme", lambda stats: stats.warm == 0)


async def test_the_pools_status_counts_and_the_network_policy_stands(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("acme", egress=[{"cidr": "10.1.0.0/16", "ports": [443]}])
    team.pool("run", {"world": "acme", "warmMin": 2})
    brokers.start()
    await client.claim("acme", "trial-1", run="run")
    deadline = Deadline.after(180)
    while not (counts := team.get("rolloutpool", "run").get("status", {}).get("sandboxes")) or counts[0]["warm"] != 2:
        deadline.check(f"the counts of the pool; they are {counts}")
        await SYSTEM_CLOCK.sleep(0.2)
    assert counts == [{"world": "acme", "warm": 2, "claimed": 1, "failed": 0, "starting": 0, "waiting": 0}]
    policy = team.get("networkpolicy", "acme-sandboxes")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert [rule["to"] for rule in policy["spec"]["egress"]] == [[{"ipBlock": {"cidr": "10.1.0.0/16"}}]]


async def test_worlds_of_every_kind_become_sandboxes_under_the_restricted_standard(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    mail = {"name": "mail", "image": "registry.test/mail:v1", "port": 8001, "path": "/mail/"}
    team.world("sidecars", mcp={"kind": "Sidecars", "sidecars": [mail]})
    team.world("archipelago", mcp={"kind": "Archipelago", "port": 9000})
    team.world("populated", populate=[{"image": "registry.test/files:v1", "source": "/docs", "target": "/data"}])
    brokers.start()
    for world in ("sidecars", "archipelago", "populated"):
        answer = await client.claim(world, f"trial-{world}")
        assert answer.sandbox.address, answer


async def test_callers_see_their_own_namespace_only_and_need_a_token_for_the_broker(
    brokers: Brokers, client: BrokerClient, team: Namespace, cluster: Cluster
) -> None:
    other = Namespace(cluster, f"{team.name}-other")
    other.make()
    brokers.config["namespaces"].append(other.name)
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 1})
    brokers.start()
    mine = (await client.claim("acme", "trial-1")).sandbox
    async with broker_client(brokers.address, other.token()) as stranger:
        assert not (await stranger.call("Stats", pb.StatsRequest())).worlds
        await stranger.release("trial-1")
        renewed = await stranger.call("Renew", pb.RenewRequest(trials=["trial-1"]))
        assert renewed.renewals["trial-1"].failure.kind == pb.FAILURE_KIND_LEASE
    renewed = await client.call("Renew", pb.RenewRequest(trials=["trial-1"]))
    assert renewed.renewals["trial-1"].sandbox.name == mine.name
    for token in (team.token("https://kubernetes.default.svc"), "nonsense"):
        async with broker_client(brokers.address, token) as refused:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await refused.once("Stats", pb.StatsRequest())
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as invalid:
        await client.claim("acme", "no label/value")
    assert invalid.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    other.remove()


async def test_a_quota_makes_claims_wait_and_is_named_when_they_may_wait_no_longer(
    brokers: Brokers, client: BrokerClient, team: Namespace, cluster: Cluster
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": team.name}}
    cluster.apply({**quota, "spec": {"hard": {"pods": "2"}}})
    team.world("acme")
    brokers.start()
    first, second = [(await client.claim("acme", f"trial-{number}")).sandbox for number in range(2)]
    assert first.name != second.name
    third = await client.claim("acme", "trial-2", seconds=4)
    assert third.failure.kind == pb.FAILURE_KIND_QUOTA
    assert "exceeded quota" in third.failure.message
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.claim("acme", "trial-3", seconds=60))
        await client.until("acme", lambda stats: stats.waiting == 1)
        await client.release("trial-0")
    assert waiting.result().sandbox.name


async def test_a_world_that_does_not_exist_or_is_not_resolved_is_named(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("unresolved", is_resolved=False)
    brokers.config["sandboxes"]["troubleSeconds"] = 1
    brokers.start()
    for world, told in (("nowhere", "there is no WorldImage"), ("unresolved", "is not resolved")):
        failure = (await client.claim(world, f"trial-{world}")).failure
        assert failure.kind == pb.FAILURE_KIND_WORLD
        assert told in failure.message


async def test_a_sandbox_that_dies_is_told_of_at_once_and_another_can_be_claimed(
    brokers: Brokers, client: BrokerClient, team: Namespace, cluster: Cluster
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 1})
    brokers.start()
    first = (await client.claim("acme", "trial-1")).sandbox
    address = brokers.address()
    assert address is not None
    watch = client.stub(address).Watch(pb.WatchRequest(run="run"), metadata=client.metadata)
    await client.until("acme", lambda stats: stats.warm == 1)
    ended = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    patch = ["patch", "pod", first.name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": ended})]
    cluster.kubectl("-n", team.name, *patch)
    lost = await asyncio.wait_for(watch.read(), 20)
    watch.cancel()
    assert (lost.trial, lost.sandbox) == ("trial-1", first.name)
    assert lost.failure.kind == pb.FAILURE_KIND_EVICTED
    second = (await client.claim("acme", "trial-1", replaces=first.name)).sandbox
    assert second.name != first.name
    assert list(team.holders("acme").values()) == ["trial-1"]


async def test_a_broker_that_is_killed_twice_loses_no_claim_and_makes_no_pod_too_many(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 10, "warmMax": 40, "ceiling": 100})
    brokers.start()
    await client.until("acme", lambda stats: stats.warm == 10)
    answers: dict[str, str] = {}

    async def one(trial: str) -> None:
        answers[trial] = (await client.claim("acme", trial, seconds=90)).sandbox.name

    async with history(team, "acme") as claimed, asyncio.TaskGroup() as tasks:
        for number in range(40):
            tasks.create_task(one(f"trial-{number}"))
            if number in {10, 25}:
                await SYSTEM_CLOCK.sleep(0.05)
                brokers.processes[-1].kill()
                brokers.start()
    assert len(answers) == 40
    assert all(len(trials) == 1 for trials in claimed.values())
    assert len(claimed) == 40
    held = team.holders("acme")
    assert {trial: name for name, trial in held.items()} == answers
    await client.until("acme", lambda stats: stats.warm == 10 and stats.starting == 0)
    assert len(team.pods("acme")) == 50


async def test_of_two_brokers_one_serves_and_the_other_takes_over(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 2})
    first = brokers.start()
    mine = (await client.claim("acme", "trial-1")).sandbox
    second = brokers.start()
    deadline = Deadline.after(180)
    while not said(second, "waiting for the lease"):
        deadline.check("the second broker to wait")
        await SYSTEM_CLOCK.sleep(0.1)
    await client.until("acme", lambda stats: stats.warm == 2)
    assert not said(second, "listening")
    assert first.stop() == 0
    stats = await client.until("acme", lambda stats: stats.warm == 2)
    assert stats.claimed == 1
    assert stats.created == 0
    assert (await client.claim("acme", "trial-1")).sandbox.name == mine.name


def is_settled(stats: pb.WorldStats) -> bool:
    """Whether 20 are claimed and 4 warm; one whose creation went without an answer is ready before it is counted."""
    return bool(stats.warm == 4 and stats.starting == 0 and stats.created >= 24)


async def test_lost_answers_and_a_broken_connection_give_no_trial_two_sandboxes(
    cluster: Cluster, team: Namespace, tmp_path: Path, proxy: ApiProxy
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 4, "warmMax": 10, "ceiling": 30})
    steps = iter(range(10**6))
    with running(tmp_path, proxy.kubeconfig, team, lease=_patient(team)) as brokers:
        async with broker_client(brokers.address, team.token()) as client:
            brokers.start()
            await client.until("acme", lambda stats: stats.warm == 4)
            proxy.after = lambda step: "/pods" in step and next(steps) % 3 == 0
            async with asyncio.TaskGroup() as tasks:
                claims = [tasks.create_task(client.claim("acme", f"trial-{number}")) for number in range(20)]
                await SYSTEM_CLOCK.sleep(0.3)
                proxy.is_cut = True
                await SYSTEM_CLOCK.sleep(2)
                proxy.is_cut = False
            proxy.after = lambda _: False
            names = {claim.result().sandbox.name for claim in claims}
            assert len(names - {""}) == 20
            assert team.holders("acme").keys() == names
            stats = await client.until("acme", is_settled)
            assert stats.created == len(team.pods("acme")) == 24


async def test_an_api_server_that_dies_while_trials_claim_costs_no_claim_and_no_pod_too_many(
    brokers: Brokers, client: BrokerClient, team: Namespace, cluster: Cluster
) -> None:
    team.world("acme")
    team.pool("run", {"world": "acme", "warmMin": 4, "warmMax": 10, "ceiling": 40})
    brokers.config["sandboxes"]["lease"] = _patient(team)
    brokers.start()
    await client.until("acme", lambda stats: stats.warm == 4)
    async with pods_come_up(team):
        async with asyncio.TaskGroup() as tasks:
            claims = [tasks.create_task(client.claim("acme", f"trial-{number}", seconds=120)) for number in range(20)]
            await SYSTEM_CLOCK.sleep(0.1)
            await asyncio.to_thread(cluster.kill_api_server)
        names = {claim.result().sandbox.name for claim in claims}
        assert len(names - {""}) == 20
        assert team.holders("acme").keys() == names
        stats = await client.until("acme", is_settled)
    assert stats.created == len(team.pods("acme")) == 24
    await client.release("trial-0")
    await client.until("acme", lambda stats: stats.claimed == 19)
    assert len(brokers.processes) == 1
    assert brokers.processes[0].process.poll() is None


async def test_a_trial_has_a_sandbox_of_one_world_at_a_time(
    brokers: Brokers, client: BrokerClient, team: Namespace
) -> None:
    team.world("acme")
    team.world("other")
    brokers.start()
    await client.claim("acme", "trial-1")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.claim("other", "trial-1")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await client.release("trial-1")
    assert (await client.claim("other", "trial-1")).sandbox.name


@asynccontextmanager
async def pods_come_up(team: Namespace) -> AsyncIterator[None]:
    """Let KWOK look again at pods that it gave up: it repeats no request that broke off with the API server."""

    async def touch() -> None:
        while True:
            await SYSTEM_CLOCK.sleep(2)
            touched = ("--all", "--field-selector=status.phase=Pending", f"tests.seatrial.dev/touched={uuid4()}")
            with suppress(CommandError):  # while there is no API server
                await asyncio.to_thread(
                    team.cluster.kubectl, "-n", team.name, "annotate", "--overwrite", "pods", *touched
                )

    async with asyncio.TaskGroup() as tasks:
        touching = tasks.create_task(touch())
        yield
        touching.cancel()


def _patient(team: Namespace) -> dict[str, object]:
    """A Lease that outlives the cut."""
    return {"name": f"broker-{team.name}", "namespace": "default", "durationSeconds": 30, "renewSeconds": 25}
