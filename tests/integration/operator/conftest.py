"""A cluster on which runs can live: KubeRay is real, and what would run in pods stands in."""

import os
from collections.abc import Iterator

import pytest

from hack.cluster import Cluster, Grade
from hack.cluster.layout import ROOT
from tests.cluster_runs import NAMESPACE, claim
from tests.clusters import cluster_of
from tests.ray_stand_in import RayStandIn, ray_stand_in


@pytest.fixture(scope="session")
def ray() -> Iterator[RayStandIn]:
    with ray_stand_in() as stand_in:
        yield stand_in


@pytest.fixture(scope="session")
def kuberay(ray: RayStandIn) -> Iterator[Cluster]:
    """A cluster whose KubeRay reaches dashboards through the stand-in."""
    os.environ["HTTP_PROXY"] = ray.url
    try:
        clusters = cluster_of(Grade.CONTROLLERS)
        made = next(clusters)
    finally:
        del os.environ["HTTP_PROXY"]
    made.apply_crds(ROOT / "crds")
    made.fake_nodes(6, **{"nvidia.com/gpu": "8"})
    made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *claim("runs"))
    ray.cluster = made
    yield made
    next(clusters, None)
