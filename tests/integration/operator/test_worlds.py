"""WorldImages in a real cluster, from a real registry; ECR is moto's."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import boto3
import pytest

from hack.cluster import Cluster
from hack.cluster.layout import ROOT
from seatrial_api.spec.topology import Resources
from seatrial_api.world_image import InspectionResult
from seatrial_operator.config import InspectionsConfig, OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import ObjectKey
from seatrial_operator.registry.credentials import Credentials, docker_config
from seatrial_operator.registry.ecr import EcrClient
from seatrial_operator.registry.resolver import Resolver
from seatrial_operator.services.pull_secrets import PullSecrets
from seatrial_operator.services.worlds import WorldService
from tests.aws import AWS_REGION, ECR_HOST, aws
from tests.clocks import HeldClock
from tests.reconciling import client_of, condition, says, settle
from tests.registries import MANIFEST, PASSWORD, USERNAME, Registry, basic, password_auth, registry

NAMESPACE = "worlds"
NODE_LABEL = "worlds.test/pulls"
TOKENS_EXPIRE = datetime(2015, 1, 1, tzinfo=UTC)
"""All of moto's do."""

type Object = dict[str, Any]


@dataclass
class HeldTime:
    """A day and a clock that stand still."""

    moment: datetime = TOKENS_EXPIRE - timedelta(hours=12)
    clock: HeldClock = field(default_factory=HeldClock)

    def now(self) -> datetime:
        """The time of day."""
        return self.moment

    def advance(self, **units: float) -> None:
        """Let time pass."""
        step = timedelta(**units)
        self.moment += step
        self.clock.advance(step.total_seconds())


@pytest.fixture(scope="module")
def cluster(controllers: Cluster) -> Iterator[Cluster]:
    """A cluster with a namespace of this module's own."""
    controllers.apply_crds(ROOT / "crds")
    controllers.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield controllers
    controllers.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
async def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The operator's client."""
    async with client_of(cluster, monkeypatch) as client:
        yield client


@pytest.fixture
def time() -> HeldTime:
    """Time, twelve hours before moto's tokens expire."""
    return HeldTime()


@pytest.fixture
async def service(client: KubeClient, time: HeldTime) -> AsyncIterator[WorldService]:
    """The service under test."""
    async with aiohttp.ClientSession() as session:
        ecr = EcrClient()
        resolver = Resolver(session, ecr)
        yield WorldService(client, resolver, PullSecrets(client, ecr), OperatorConfig(), time.clock, time.now)


@pytest.fixture
async def open_registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """Anyone may read and write."""
    async with registry(tmp_path) as running:
        yield running


def make(cluster: Cluster, name: str, **spec: Any) -> tuple[ObjectKey, Callable[[], Object]]:
    """Apply a world; its key, and a way to look at it."""
    kind = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "WorldImage"}
    cluster.apply({**kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    return ObjectKey("WorldImage", NAMESPACE, name), lambda: get(cluster, "worldimage", name)


def get(cluster: Cluster, kind: str, name: str) -> Object:
    """An object of this module's namespace."""
    found: Object = json.loads(cluster.kubectl("-n", NAMESPACE, "get", kind, name, "-o", "json"))
    return found


def events(cluster: Cluster, name: str) -> list[str]:
    """Reasons of the events about a world."""
    field_selector = f"regarding.name={name}"
    found = cluster.kubectl(
        "-n", NAMESPACE, "get", "events.v1.events.k8s.io", "--field-selector", field_selector, "-o", "json"
    )
    return [item["reason"] for item in json.loads(found)["items"]]


async def test_a_tag_becomes_a_digest_and_is_held_when_it_moves(
    cluster: Cluster, service: WorldService, time: HeldTime, open_registry: Registry
) -> None:
    first = await open_registry.push("worlds/acme", "v1", mark="first")
    image = f"{open_registry.host}/worlds/acme:v1"
    key, look = make(cluster, "held", image=image)
    world = await settle(service, key, look, says("Ready", "True Ready"))
    assert (world["status"]["digest"], world["status"]["image"]) == (first, image)

    second = await open_registry.push("worlds/acme", "v1", mark="second")
    time.advance(minutes=16)
    await service.reconcile(key)
    world = look()
    assert world["status"]["digest"] == first
    assert f"set spec.image to {open_registry.host}/worlds/acme@{second}" in world["status"]["conditions"][0]["message"]
    assert sorted(events(cluster, "held")) == ["DigestKnown", "TagMoved"]

    make(cluster, "held", image=f"{open_registry.host}/worlds/acme@{second}")
    world = await settle(service, key, look, lambda item: item["status"]["digest"] == second)
    assert world["status"]["observedGeneration"] == world["metadata"]["generation"] == 2


async def test_a_missing_image_is_told_and_found_once_it_is_pushed(
    cluster: Cluster, service: WorldService, time: HeldTime, open_registry: Registry
) -> None:
    key, look = make(cluster, "late", image=f"{open_registry.host}/worlds/late:v1")
    assert await service.reconcile(key) == service.config.registries.retry_seconds
    assert condition(look(), "Resolved") == "False NotFound"
    assert condition(look(), "Ready") == "False Resolved"
    await open_registry.push("worlds/late", "v1")
    time.advance(minutes=2)
    await settle(service, key, look, says("Ready", "True Ready"))


async def test_nothing_is_written_while_nothing_changes(
    cluster: Cluster, service: WorldService, time: HeldTime, open_registry: Registry
) -> None:
    await open_registry.push("worlds/acme", "v1")
    key, look = make(cluster, "calm", image=f"{open_registry.host}/worlds/acme:v1")
    await service.reconcile(key)
    version = look()["metadata"]["resourceVersion"]
    for _ in range(3):
        time.advance(minutes=20)
        await service.reconcile(key)
    assert look()["metadata"]["resourceVersion"] == version


async def test_a_pull_secret_opens_a_registry(
    cluster: Cluster, service: WorldService, time: HeldTime, tmp_path: Path
) -> None:
    async with registry(tmp_path, password_auth(tmp_path)) as running:
        running.headers = basic(USERNAME, PASSWORD)
        pushed = await running.push("worlds/acme", "v1")
        key, look = make(cluster, "closed", image=f"{running.host}/worlds/acme:v1", pullSecret="keys")
        await service.reconcile(key)
        assert condition(look(), "Resolved") == "False Unauthorized"
        assert f"there is no Secret {NAMESPACE}/keys" in look()["status"]["conditions"][0]["message"]
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "keys", "namespace": NAMESPACE},
                "type": "kubernetes.io/dockerconfigjson",
                "stringData": {".dockerconfigjson": docker_config({running.host: Credentials(USERNAME, PASSWORD)})},
            }
        )
        time.advance(minutes=2)
        world = await settle(service, key, look, says("Resolved", "True DigestKnown"))
        assert world["status"]["digest"] == pushed


async def test_nodes_pull_a_few_at_a_time_and_are_counted(
    cluster: Cluster, service: WorldService, open_registry: Registry
) -> None:
    digest = await open_registry.push("worlds/acme", "v1")
    nodes = cluster.fake_nodes(4)
    cluster.kubectl("label", "nodes", *nodes, f"{NODE_LABEL}=yes")
    pre_pull = {"nodeSelector": {NODE_LABEL: "yes"}, "parallelism": 2}
    key, look = make(cluster, "cached", image=f"{open_registry.host}/worlds/acme:v1", prePull=pre_pull)

    assert await service.reconcile(key) == service.config.poll_seconds
    assert len(pull_pods(cluster, "cached")) == 2
    assert condition(look(), "Ready") == "False Cached"
    world = await settle(service, key, look, says("Cached", "True Pulled"))

    assert (world["status"]["nodesCached"], world["status"]["nodesWanted"]) == (4, 4)
    assert condition(world, "Ready") == "True Ready"
    pods = pull_pods(cluster, "cached")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(nodes)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {f"{open_registry.host}/worlds/acme@{digest}"}

    make(cluster, "cached", image=f"{open_registry.host}/worlds/acme:v1")
    await settle(service, key, look, lambda _: not pull_pods(cluster, "cached"))
    assert condition(look(), "Cached") == ""
    cluster.kubectl("delete", "nodes", *nodes)


def pull_pods(cluster: Cluster, world: str) -> list[Object]:
    """Pods that pull for a world."""
    found = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", f"seatrial.dev/pre-pull={world}", "-o", "json")
    items: list[Object] = json.loads(found)["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


async def test_a_world_is_inspected_by_a_job_and_again_after_its_tasks_were_mended_or_changed(
    cluster: Cluster, client: KubeClient, time: HeldTime, open_registry: Registry
) -> None:
    await open_registry.push("worlds/acme", "v1")
    nowhere = InspectionsConfig(resources=Resources(requests={"cpu": "9999"}))  # nothing but this test plays its pod
    async with aiohttp.ClientSession() as session:
        ecr, config = EcrClient(), OperatorConfig(inspections=nowhere)
        service = WorldService(client, Resolver(session, ecr), PullSecrets(client, ecr), config, time.clock, time.now)
        spec: Object = {"image": f"{open_registry.host}/worlds/acme:v1", "inspection": {"tasks": TASKS}}
        key, look = make(cluster, "tried", **spec)
        await settle(service, key, look, lambda _: bool(inspection_pods(cluster, "tried")))
        assert condition(look(), "Ready") == "False Inspected"

        found = InspectionResult(passed=False, tasks=2, trials=26, faults={"Flaky": 1}, first=["Flaky a: 0, 1"])
        play(cluster, "tried", found)
        world = await settle(service, key, look, says("Inspected", "False InspectionFailed"))
        assert world["status"]["inspection"]["faults"] == {"Flaky": 1}
        assert "Flaky a: 0, 1" in world["status"]["conditions"][-1]["message"]
        assert "InspectionFailed" in events(cluster, "tried")

        cluster.kubectl("-n", NAMESPACE, "delete", "job", "-l", "seatrial.dev/inspects=tried")
        await settle(service, key, look, lambda _: bool(inspection_pods(cluster, "tried")))
        play(cluster, "tried", InspectionResult(passed=True, tasks=2, trials=26))
        await settle(service, key, look, says("Ready", "True Ready"))
        cluster.kubectl("-n", NAMESPACE, "delete", "job", "-l", "seatrial.dev/inspects=tried")
        await service.reconcile(key)
        assert not inspection_pods(cluster, "tried"), "what passed is not tried again"

        make(cluster, "tried", **{**spec, "inspection": {"tasks": TASKS, "repeats": 5}})
        await settle(service, key, look, says("Inspected", "False Inspecting"))


async def test_a_pod_template_that_cannot_be_merged_is_told_as_why_a_world_is_not_inspected(
    cluster: Cluster, client: KubeClient, time: HeldTime, open_registry: Registry
) -> None:
    await open_registry.push("worlds/acme", "v1")
    nameless = InspectionsConfig(pod_template={"spec": {"volumes": [{"emptyDir": {}}]}})
    async with aiohttp.ClientSession() as session:
        ecr, config = EcrClient(), OperatorConfig(inspections=nameless)
        service = WorldService(client, Resolver(session, ecr), PullSecrets(client, ecr), config, time.clock, time.now)
        image = f"{open_registry.host}/worlds/acme:v1"
        key, look = make(cluster, "unmerged", image=image, inspection={"tasks": TASKS})
        world = await settle(service, key, look, says("Inspected", "False JobFailed"))
    assert "spec.volumes[0]" in str(world["status"]["conditions"])


TASKS = {"source": {"hf": {"repo": "acme/tasks"}}}


def inspection_pods(cluster: Cluster, world: str) -> list[str]:
    """Names of the pods that inspect a world and have not ended."""
    selector = ("-l", f"seatrial.dev/inspects={world}", "--field-selector=status.phase=Pending")
    return cluster.kubectl("-n", NAMESPACE, "get", "pods", *selector, "-o", "name").split()


def play(cluster: Cluster, world: str, result: InspectionResult) -> None:
    """Let the pod that inspects a world end with a result, as a kubelet would tell it."""
    terminated = {"exitCode": 0, "message": result.model_dump_json(by_alias=True)}
    container = {"name": "inspection", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    status = {"phase": "Succeeded", "containerStatuses": [{**container, "state": {"terminated": terminated}}]}
    [pod] = inspection_pods(cluster, world)
    patch = json.dumps({"status": status})
    cluster.kubectl("-n", NAMESPACE, "patch", pod, "--subresource=status", "--type=merge", "-p", patch)


class CountedEcr:
    """ECR clients that count the tokens they ask for."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def __call__(self, region: str) -> Any:
        """A client for a region."""
        client = boto3.Session().client("ecr", region_name=region)
        client.meta.events.register("before-call.ecr.GetAuthorizationToken", self._count)
        return client

    def _count(self, **_: Any) -> None:
        self.num_tokens += 1


@pytest.fixture
def empty_ecr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client for an empty ECR."""
    with aws(monkeypatch):
        client = boto3.Session().client("ecr", region_name=AWS_REGION)
        yield client
        client.close()


async def test_an_image_on_ecr_gets_a_pull_secret_that_is_renewed_long_before_it_expires(
    cluster: Cluster, client: KubeClient, time: HeldTime, empty_ecr: Any
) -> None:
    empty_ecr.create_repository(repositoryName="worlds/acme")
    manifest = f'{{"schemaVersion": 2, "mediaType": "{MANIFEST}", "config": {{}}, "layers": []}}'
    empty_ecr.put_image(repositoryName="worlds/acme", imageManifest=manifest, imageTag="v1")
    counted = CountedEcr()
    ecr = EcrClient(counted)
    async with aiohttp.ClientSession() as session:
        secrets = PullSecrets(client, ecr)
        service = WorldService(client, Resolver(session, ecr), secrets, OperatorConfig(), time.clock, time.now)
        key, look = make(cluster, "on-ecr", image=f"{ECR_HOST}/worlds/acme:v1")
        world = await settle(service, key, look, says("Ready", "True Ready"))

        secret = get(cluster, "secret", "on-ecr-pull")
        assert secret["type"] == "kubernetes.io/dockerconfigjson"
        auths = json.loads(b64decode(secret["data"][".dockerconfigjson"]))["auths"]
        assert auths[ECR_HOST]["username"] == "AWS"
        assert secret["metadata"]["ownerReferences"][0]["uid"] == world["metadata"]["uid"]

        tokens = []
        for hours in (5.9, 0.2, 0.0, 12):
            time.advance(hours=hours)
            await service.reconcile(key)
            tokens.append(counted.num_tokens)
        assert tokens == [1, 2, 3, 4]


async def test_a_deleted_pull_secret_is_made_again(cluster: Cluster, service: WorldService, empty_ecr: Any) -> None:
    key, look = make(cluster, "healed", image=f"{ECR_HOST}/worlds/none:v1")
    await service.reconcile(key)
    assert condition(look(), "Resolved") == "False NotFound"
    cluster.kubectl("-n", NAMESPACE, "delete", "secret", "healed-pull")
    await service.reconcile(key)
    assert get(cluster, "secret", "healed-pull")["data"]


async def test_a_world_that_is_gone_takes_everything_along(
    cluster: Cluster, service: WorldService, empty_ecr: Any
) -> None:
    key, _ = make(cluster, "gone", image=f"{ECR_HOST}/worlds/none:v1")
    await service.reconcile(key)
    assert get(cluster, "secret", "gone-pull")
    cluster.kubectl("-n", NAMESPACE, "delete", "worldimage", "gone")
    assert await service.reconcile(key) is None
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=delete", "secret/gone-pull", "--timeout=180s")
