"""Nothing malformed or contradictory is accepted in silence: admission refuses it, or the operator tells why."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from hack.cluster import Cluster
from hack.cluster.layout import ROOT, SHARE
from seatrial_api.crd import KINDS
from seatrial_api.rules import COLLECT, RuledModel, violations
from seatrial_operator.config import OperatorConfig, SandboxesConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import RefusedError
from seatrial_operator.kube.resources import RAY_JOBS, RLRUNS, ROLLOUT_POOLS, WORLD_IMAGES, ObjectKey
from seatrial_operator.services.drivers import DriverClient
from seatrial_operator.services.runs import RunService
from tests.bad_manifests import Malformed, Refused, base_of, malformed, refused
from tests.broken_rules import CASES, UPDATES, changed
from tests.reconciling import client_of

NAMESPACE = "team"
RESOURCES = {resource.kind: resource for resource in (RLRUNS, WORLD_IMAGES, ROLLOUT_POOLS)}
REFUSED = list(refused())
CONFIG = OperatorConfig(sandboxes=SandboxesConfig(address="broker.test:8092"))
AT_ONCE = 16


@pytest.fixture(scope="module")
def server(control_plane: Cluster) -> Cluster:
    control_plane.apply_crds(ROOT / "crds")
    control_plane.apply_crds(SHARE / "kuberay")
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    control_plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "runs", "namespace": NAMESPACE},
            "spec": claim,
        },
    )
    # New kinds answer 429 until their caches are filled, which kubectl waits for.
    control_plane.kubectl("get", "rlruns,rolloutpools,worldimages,rayjobs", f"--namespace={NAMESPACE}")
    return control_plane


@pytest.fixture
async def client(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    async with client_of(server, monkeypatch) as made:
        yield made


async def answer(client: KubeClient, manifest: dict[str, Any]) -> str:
    """What admission says to a manifest; empty if it is accepted."""
    named = changed(manifest, {"metadata__namespace": NAMESPACE})
    try:
        await client.create(RESOURCES[manifest["kind"]], NAMESPACE, named, dry_run=True)
    except RefusedError as error:
        return error.detail
    return ""


async def test_valid_manifests_are_accepted(client: KubeClient) -> None:
    for kind in KINDS:
        assert await answer(client, base_of(kind)) == ""
    for case in REFUSED:
        assert await answer(client, case.manifest) == "", f"{case.name}: the operator is to refuse it, not admission"


async def test_every_constraint_of_every_field_is_enforced_at_admission(client: KubeClient) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def told(case: Malformed) -> str | None:
        async with slots:
            said = await answer(client, case.manifest)
        return None if case.field in said else f"{case.name}: {said or 'accepted'}"

    async with asyncio.TaskGroup() as tasks:
        results = [tasks.create_task(told(case)) for case in malformed()]
    assert [result.result() for result in results if result.result()] == []
    assert len(results) > 900


async def test_every_contradiction_is_refused_in_the_words_of_seatrial_validate(client: KubeClient) -> None:
    for model, base, changes, path, _ in CASES:
        manifest = changed(base, changes)
        said = await answer(client, manifest)
        for violation in violations(model.model_validate(manifest, context=COLLECT)):
            assert violation.message in said, (changes, said)
        if not path.startswith(".metadata"):
            assert path.strip(".") in said


@pytest.mark.parametrize(("model", "base", "changes", "path"), UPDATES)
async def test_what_decides_a_run_is_refused_to_change(
    client: KubeClient, model: type[RuledModel], base: dict[str, Any], changes: dict[str, Any], path: str
) -> None:
    resource = RESOURCES[base["kind"]]
    made = changed(base, {"metadata__name": f"u-{uuid.uuid4().hex[:6]}", "metadata__namespace": NAMESPACE})
    await client.create(resource, NAMESPACE, {key: value for key, value in made.items() if key != "status"})
    if "status" in made:
        begun = {"metadata": {"name": made["metadata"]["name"]}, "status": made["status"]}
        await client.apply_status(resource, NAMESPACE, begun)
    after = changed(made, changes)
    (broken,) = violations(model.model_validate(after, context=COLLECT), model.model_validate(made, context=COLLECT))
    after.pop("status", None)
    with pytest.raises(RefusedError) as caught:
        await client.apply(resource, NAMESPACE, after)
    assert broken.message in caught.value.detail
    assert path.strip(".") in caught.value.detail


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
async def test_what_the_operator_cannot_run_is_told_by_a_condition_and_then_left_alone(
    client: KubeClient, case: Refused
) -> None:
    key = ObjectKey(RLRUNS.kind, NAMESPACE, case.manifest["metadata"]["name"])
    await client.create(RLRUNS, NAMESPACE, case.manifest)
    async with aiohttp.ClientSession() as session:
        service = RunService(client, DriverClient(session, timeout_seconds=1), CONFIG)
        await service.reconcile(key)
        told = await client.get(RLRUNS, NAMESPACE, key.name)
        wait = await service.reconcile(key)
    unmet = [one for one in told["status"]["conditions"] if one["status"] == "False"]
    assert [one["reason"] for one in unmet] == [case.reason]
    assert case.field in unmet[0]["message"]
    assert case.words in unmet[0]["message"]
    assert wait is not None
    assert wait >= 5, "it is looked at again now and then, not in a loop"
    after = await client.get(RLRUNS, NAMESPACE, key.name)
    assert after["metadata"]["resourceVersion"] == told["metadata"]["resourceVersion"]
    assert await client.list(RAY_JOBS, NAMESPACE) == []
