"""A cluster with Seatrial in it, for all files that want one."""

from collections.abc import Iterator

import pytest

from hack.cluster import Grade
from tests.clusters import cluster_of
from tests.e2e.deployment import Deployment


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A node of its own with the chart and a team's volume."""
    for cluster in cluster_of(Grade.NODE):
        yield Deployment.install(cluster, tmp_path_factory.mktemp("storage"))
