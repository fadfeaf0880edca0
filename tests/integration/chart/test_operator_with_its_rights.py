"""The operator, with the rights that the chart gives it and behind the chart's own admission policies."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hack.cluster import Cluster
from tests.charts import NAMESPACE, operator_kubeconfig
from tests.leftovers import eventually
from tests.operator_objects import CLAIM, POOL, WORLD, small_run
from tests.operator_process import LONG_LEASE, OperatorProcess, operator_config, operator_process


@pytest.fixture(scope="module")
def operator(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    config = operator_config(
        "http://127.0.0.1:9",
        namespaces=["team-a", "team-b"],
        lease={**LONG_LEASE, "namespace": NAMESPACE, "name": "seatrial-operator"},
    )
    installed.apply(CLAIM)
    with operator_process(folder, operator_kubeconfig(installed, folder), config) as started:
        yield started


def names(cluster: Cluster, kind: str, namespace: str = "team-a") -> set[str]:
    listed = cluster.kubectl("get", kind, "-n", namespace, "-o", "jsonpath={range .items[*]}{.metadata.name} {end}")
    return set(listed.split())


async def test_it_starts_a_run_and_its_pool(installed: Cluster, operator: OperatorProcess) -> None:
    installed.apply(small_run("learn"))
    await eventually(lambda: "learn-s0-a0" in names(installed, "rayjobs"), what="the RayJob", seconds=60)
    await eventually(lambda: "learn-s0-a0" in names(installed, "secrets"), what="its Secret", seconds=60)
    await eventually(lambda: "learn" in names(installed, "rolloutpools"), what="its pool", seconds=60)
    await eventually(lambda: "phase" in _status(installed, "rlrun", "learn"), what="a status", seconds=60)
    events = "jsonpath={.items[*].reason}"
    await eventually(lambda: installed.kubectl("get", "events", "-n", "team-a", "-o", events), what="an event")


async def test_it_looks_after_pools_and_worlds(installed: Cluster, operator: OperatorProcess) -> None:
    installed.apply(POOL, WORLD)
    await eventually(lambda: "alone" in names(installed, "rayclusters"), what="the engines", seconds=60)
    await eventually(lambda: "alone" in names(installed, "services"), what="the endpoint", seconds=60)
    await eventually(lambda: _status(installed, "worldimage", "office"), what="the world's status", seconds=60)
    installed.kubectl("delete", "rolloutpool", "alone", "-n", "team-a")


async def test_it_does_not_see_what_it_was_not_told_to_watch(installed: Cluster, operator: OperatorProcess) -> None:
    installed.apply(small_run("foreign", "team-c"), small_run("after-it"))
    await eventually(lambda: "after-it-s0-a0" in names(installed, "rayjobs"), what="the other run", seconds=60)
    assert names(installed, "rayjobs", "team-c") == set()


async def test_nothing_that_it_tried_was_forbidden(installed: Cluster, operator: OperatorProcess) -> None:
    """Runs after the others in this file."""
    said = [record for record in operator.records() if "forbidden" in json.dumps(record).lower()]
    assert said == []
    assert any(record.get("event") == "holding the lease" for record in operator.records())


def _status(cluster: Cluster, kind: str, name: str) -> dict[str, Any]:
    answer = json.loads(cluster.kubectl("get", kind, name, "-n", "team-a", "-o", "json"))
    return dict(answer.get("status") or {})
