from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.cluster import Cluster, Grade
from hack.cluster.layout import ROOT, SHARE
from tests.charts import EVERYTHING, NAMESPACE, render
from tests.clusters import cluster_of

PROMETHEUS_CRDS = ROOT / "tests" / "data" / "prometheus_operator" / "crds.yaml"


@pytest.fixture(scope="session")
def own_control_plane() -> Iterator[Cluster]:
    """One of these tests' own: the chart's admission policies would refuse what other tests do."""
    for cluster in cluster_of(Grade.CONTROL_PLANE):
        for path in (PROMETHEUS_CRDS, SHARE / "kuberay"):
            cluster.apply_crds(path)
        cluster.apply(*(namespace(name) for name in (NAMESPACE, "team-a", "team-b", "team-c", "kuberay-system")))
        cluster.apply(default_service_account(NAMESPACE))
        yield cluster


@pytest.fixture(scope="session")
def rendered() -> list[dict[str, Any]]:
    """All that the chart can make."""
    return render(EVERYTHING)


@pytest.fixture(scope="session")
def installed(own_control_plane: Cluster, rendered: list[dict[str, Any]]) -> Cluster:
    """A cluster that holds the chart's objects, its test's pod aside."""
    crds = [item for item in rendered if item["kind"] == "CustomResourceDefinition"]
    own_control_plane.apply(*crds)
    own_control_plane.await_established("-f", "-", stdin=yaml.safe_dump_all(crds))
    own_control_plane.apply(*(item for item in rendered if item["kind"] not in ("CustomResourceDefinition", "Pod")))
    return own_control_plane


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def default_service_account(name: str) -> dict[str, Any]:
    """A controller would make it, and none runs."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
