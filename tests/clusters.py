"""Real clusters for tests, by grade; each is started once per session, and only when a test asks for it.

A test that needs more than this machine has is skipped, with what is missing.
"""

from collections.abc import Iterator

import pytest

from hack.cluster import Cluster, Grade, MissingPartsError


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """Etcd and the API server."""
    yield from cluster_of(Grade.CONTROL_PLANE)


@pytest.fixture(scope="session")
def controllers() -> Iterator[Cluster]:
    """Also the controllers of Kubernetes, KubeRay's operator, and KWOK for nodes that pretend."""
    yield from cluster_of(Grade.CONTROLLERS)


@pytest.fixture(scope="session")
def node() -> Iterator[Cluster]:
    """Also a node that runs pods."""
    yield from cluster_of(Grade.NODE)


def cluster_of(grade: Grade) -> Iterator[Cluster]:
    """A copy of a test's own, for tests that need one untouched by others."""
    try:
        cluster = Cluster.start(grade)
    except MissingPartsError as exc:
        pytest.skip(str(exc))
    with cluster:
        yield cluster
