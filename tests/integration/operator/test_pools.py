"""RolloutPools in a real cluster: KubeRay makes the pods, KWOK plays them, and the serving process answers as told."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from hack.cluster import Cluster
from hack.cluster.layout import ROOT
from seatrial_api.progress import Progress
from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.serving import REPORT_PATH, PoolReport
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import ObjectKey
from seatrial_operator.plan.observed import PodSeen
from seatrial_operator.plan.pools import RunView
from seatrial_operator.services.pools import PoolService
from tests.reconciling import client_of, condition, says, settle
from tests.web_servers import web_server

NAMESPACE = "pools"
MODEL = {"source": {"hf": {"repo": "Qwen/Qwen3-0.6B"}}, "contextLength": {"train": 2048}}
TINY = {"requests": {"cpu": "10m", "memory": "16Mi"}}

type Object = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(controllers: Cluster) -> Iterator[Cluster]:
    """A cluster with fake nodes, and a namespace of this module's own."""
    controllers.apply_crds(ROOT / "crds")
    controllers.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    nodes = controllers.fake_nodes(2)
    yield controllers
    controllers.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    controllers.kubectl("delete", "nodes", *nodes, "--wait=false")


class ServingProcess:
    """Answers as the one on a pool's head does, with an engine for each pod that runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.tokens: set[str] = set()
        """Tokens that it was shown."""

    async def answer(self, request: web.Request) -> web.Response:
        """The report of the pool in the path."""
        self.tokens.add(request.headers["Authorization"].removeprefix("Bearer "))
        selector = f"seatrial.dev/pool={request.match_info['pool']},seatrial.dev/role=rollout"
        words = ("get", "pods", "-l", selector, "--field-selector=status.phase=Running", "-o", "json")
        pods = json.loads(self._cluster.kubectl("-n", NAMESPACE, *words))["items"]
        names = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        engines = [EngineStatus(name=name, state="Ready", weight_version=0) for name in names]
        return web.json_response(text=PoolReport(engines=engines).model_dump_json(by_alias=True))


@pytest.fixture
async def serving(cluster: Cluster) -> AsyncIterator[tuple[ServingProcess, str]]:
    """A serving process, and the template of its URL."""
    process, app = ServingProcess(cluster), web.Application()
    app.router.add_get(f"/{{pool}}{REPORT_PATH}", process.answer)
    async with web_server(app) as host:
        yield process, f"http://{host}/{{pool}}"


class Runs:
    """Runs as a test says."""

    def __init__(self) -> None:
        self.known: dict[str, RunView] = {}

    def view(self, key: ObjectKey) -> RunView | None:
        """The run of this name."""
        return self.known.get(key.name)


@pytest.fixture
async def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The operator's client."""
    async with client_of(cluster, monkeypatch) as client:
        yield client


@pytest.fixture
async def service(client: KubeClient, serving: tuple[ServingProcess, str]) -> AsyncIterator[PoolService]:
    """The service under test."""
    async with aiohttp.ClientSession() as session:
        yield PoolService(client, session, Runs(), OperatorConfig(serving_url=serving[1]))


def make(cluster: Cluster, name: str, **spec: Any) -> tuple[ObjectKey, Callable[[], Object]]:
    """Apply a pool; its key, and a way to look at it."""
    kind = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "RolloutPool"}
    manifest = {**kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    cluster.apply(manifest)
    return ObjectKey("RolloutPool", NAMESPACE, name), lambda: get(cluster, "rolloutpool", name)


def serve(cluster: Cluster, name: str, replicas: int, **spec: Any) -> tuple[ObjectKey, Callable[[], Object]]:
    """Apply a pool on its own with small pods."""
    role = {"resources": TINY, **spec.pop("role", {})}
    return make(cluster, name, model=MODEL, engines={"replicas": replicas}, role=role, **spec)


def get(cluster: Cluster, kind: str, name: str) -> Object:
    """An object of this module's namespace."""
    found: Object = json.loads(cluster.kubectl("-n", NAMESPACE, "get", kind, name, "-o", "json"))
    return found


def num_engines(cluster: Cluster, name: str) -> int:
    """Engines that the RayCluster of a pool shall have."""
    replicas: int = get(cluster, "raycluster", name)["spec"]["workerGroupSpecs"][0]["replicas"]
    return replicas


async def test_a_pool_is_served_and_kubectl_scale_changes_its_engines(
    cluster: Cluster, service: PoolService, serving: tuple[ServingProcess, str]
) -> None:
    key, look = serve(cluster, "office", 2)
    pool = await settle(service, key, look, says("Ready", "True Ready"))

    assert pool["status"]["endpoint"] == f"http://office.{NAMESPACE}.svc:8000/v1"
    assert (pool["status"]["replicas"], pool["status"]["readyReplicas"]) == (2, 2)
    token = b64decode(get(cluster, "secret", "office-serving")["data"]["token"]).decode()
    assert serving[0].tokens == {token}
    made = get(cluster, "raycluster", "office")

    cluster.kubectl("-n", NAMESPACE, "scale", "rolloutpool/office", "--replicas=3")
    pool = await settle(service, key, look, lambda item: item["status"].get("readyReplicas") == 3)
    assert condition(pool, "Ready") == "True Ready"
    cluster.kubectl("-n", NAMESPACE, "scale", "rolloutpool/office", "--replicas=1")
    pool = await settle(service, key, look, lambda item: item["status"].get("replicas") == 1)
    now = get(cluster, "raycluster", "office")
    assert (now["metadata"]["uid"], num_engines(cluster, "office")) == (made["metadata"]["uid"], 1)
    assert now["spec"]["headGroupSpec"] == made["spec"]["headGroupSpec"]


async def test_an_autoscaler_scales_a_pool_by_its_scale_subresource(cluster: Cluster, service: PoolService) -> None:
    key, look = serve(cluster, "elastic", 1)
    await settle(service, key, look, says("Ready", "True Ready"))
    target = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "RolloutPool", "name": "elastic"}
    cluster.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "elastic", "namespace": NAMESPACE},
            "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 4},
        }
    )
    pool = await settle(service, key, look, lambda item: item["status"].get("readyReplicas") == 2)
    assert pool["spec"]["engines"]["replicas"] == 2
    cluster.kubectl("-n", NAMESPACE, "delete", "hpa", "elastic")


async def test_engines_of_another_make_replace_the_old_ones_and_the_token_stays(
    cluster: Cluster, service: PoolService, serving: tuple[ServingProcess, str]
) -> None:
    key, look = serve(cluster, "changed", 1)
    await settle(service, key, look, says("Ready", "True Ready"))
    before = get(cluster, "raycluster", "changed")
    serve(cluster, "changed", 1, role={"image": "mine/ray:2"})
    await settle(service, key, look, lambda _: image_of(cluster) == "mine/ray:2")
    await settle(service, key, look, says("Ready", "True Ready"))
    assert get(cluster, "raycluster", "changed")["metadata"]["uid"] != before["metadata"]["uid"]
    assert len(serving[0].tokens) == 1


def image_of(cluster: Cluster) -> str:
    """Image of the engines of the pool that changes; empty while it has no cluster."""
    words = ("get", "raycluster", "changed", "--ignore-not-found", "-o", "json")
    text = cluster.kubectl("-n", NAMESPACE, *words)
    if not text:
        return ""
    image: str = json.loads(text)["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"]
    return image


async def test_a_pool_whose_token_was_deleted_is_made_anew_with_another(
    cluster: Cluster, service: PoolService, serving: tuple[ServingProcess, str]
) -> None:
    key, look = serve(cluster, "keyless", 1)
    await settle(service, key, look, says("Ready", "True Ready"))
    before = get(cluster, "raycluster", "keyless")
    cluster.kubectl("-n", NAMESPACE, "delete", "secret", "keyless-serving")
    await settle(service, key, look, lambda _: len(serving[0].tokens) == 2)
    assert get(cluster, "raycluster", "keyless")["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_service_of_somebody_else_is_left_alone(cluster: Cluster, service: PoolService) -> None:
    theirs = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    metadata = {"name": "taken", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": theirs})
    key, look = serve(cluster, "taken", 1)
    for _ in range(3):
        await service.reconcile(key)
    assert condition(look(), "EnginesReady") == "False NameTaken"
    assert "Service taken is there" in look()["status"]["conditions"][0]["message"]
    assert get(cluster, "service", "taken")["spec"]["selector"] == {"app": "theirs"}
    assert cluster.kubectl("-n", NAMESPACE, "get", "raycluster", "taken", "--ignore-not-found") == ""


async def test_a_pod_template_that_kubernetes_refuses_is_told(cluster: Cluster, service: PoolService) -> None:
    role = {"podTemplate": {"spec": {"containers": [{"name": "ray", "env": [{"value": "no name"}]}]}}}
    key, look = serve(cluster, "misfit", 1, role=role)
    for _ in range(2):
        await service.reconcile(key)
    assert condition(look(), "EnginesReady") == "False InvalidSpec"
    assert "spec.role.podTemplate" in look()["status"]["conditions"][0]["message"]


_MOUNT = {"name": "ray", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}


@pytest.mark.parametrize(
    ("name", "template", "field"),
    [
        ("no-volume", {"containers": [_MOUNT]}, "spec.containers[0].volumeMounts[0].name: Not found"),
        ("misspelt", {"tolerationz": []}, "spec.tolerationz"),
        ("of-wrong-type", {"hostNetwork": "yes"}, "spec.hostNetwork"),
    ],
)
async def test_pods_that_kubernetes_would_never_make_are_refused_before_anything_is_made(
    cluster: Cluster, service: PoolService, name: str, template: Object, field: str
) -> None:
    key, look = serve(cluster, name, 1, role={"podTemplate": {"spec": template}})
    for _ in range(2):
        await service.reconcile(key)
    assert condition(look(), "EnginesReady") == "False Refused"
    assert f"spec.role.podTemplate.{field}" in look()["status"]["conditions"][0]["message"]
    made = cluster.kubectl("-n", NAMESPACE, "get", "raycluster,secret,service", "-l", f"seatrial.dev/pool={name}")
    assert made == ""


async def test_engines_go_on_while_what_is_to_take_their_place_is_refused(
    cluster: Cluster, service: PoolService
) -> None:
    key, look = serve(cluster, "steady", 1)
    await settle(service, key, look, says("Ready", "True Ready"))
    before = get(cluster, "raycluster", "steady")["metadata"]["uid"]
    serve(cluster, "steady", 1, role={"podTemplate": {"spec": {"containers": [_MOUNT]}}})
    await settle(service, key, look, says("EnginesReady", "False Refused"))
    assert get(cluster, "raycluster", "steady")["metadata"]["uid"] == before
    serve(cluster, "steady", 1)
    await settle(service, key, look, says("Ready", "True Ready"))
    assert get(cluster, "raycluster", "steady")["metadata"]["uid"] == before


async def test_what_keeps_kuberay_from_making_pods_is_told(cluster: Cluster, service: PoolService) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NAMESPACE}}
    cluster.apply({**quota, "spec": {"hard": {"pods": "0"}}})
    try:
        key, look = serve(cluster, "crowded", 1)
        await settle(service, key, look, lambda item: "exceeded quota" in json.dumps(item.get("status", {})))
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "resourcequota", "none")
    await settle(service, key, look, says("Ready", "True Ready"))


async def test_the_pool_of_a_run_is_told_about_and_nothing_is_made(
    cluster: Cluster, client: KubeClient, service: PoolService
) -> None:
    key, look = make(cluster, "owned", run="owned", engines={"replicas": 1})
    await service.reconcile(key)
    assert condition(look(), "Ready") == "False EnginesReady"

    pod = PodSeen("owned-abc", "u", 0, 0, "rollout", "c", "Running")
    progress = Progress(run="owned", stage="train", weight_version=3, ceilings={"live": 12.0})
    runs = Runs()
    runs.known["owned"] = RunView((pod,), progress)
    service.runs = runs
    await service.reconcile(key)
    pool = look()
    assert condition(pool, "Ready") == "True Ready"
    assert pool["status"]["engines"] == [{"name": "owned-abc", "state": "Ready", "weightVersion": 3, "kvTokens": 0}]
    assert pool["status"]["ceilings"] == {"live": 12}

    version = pool["metadata"]["resourceVersion"]
    runs.known["owned"] = RunView((pod,), progress.model_copy(update={"weight_version": 4}))
    await service.reconcile(key)
    assert look()["metadata"]["resourceVersion"] == version
    assert cluster.kubectl("-n", NAMESPACE, "get", "rayclusters", "owned", "--ignore-not-found") == ""


async def test_a_pool_that_is_gone_takes_everything_along(cluster: Cluster, service: PoolService) -> None:
    key, look = serve(cluster, "gone", 1)
    await settle(service, key, look, says("Ready", "True Ready"))
    cluster.kubectl("-n", NAMESPACE, "delete", "rolloutpool", "gone")
    assert await service.reconcile(key) is None
    things = ("raycluster/gone", "service/gone", "secret/gone-serving")
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=delete", *things, "--timeout=90s")
