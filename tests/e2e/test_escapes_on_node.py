"""Every attempt of the table, in sandbox pods on a real node that enforces the policies of their worlds."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import Cluster
from hack.cluster.images.samples import busybox_image
from hack.cluster.images.worlds import office_image
from seatrial_api.sandboxd_config import DEFAULT_PORT
from tests.escapes.arena import Match, play
from tests.escapes.attempt import Attempt, Place
from tests.escapes.places import outside
from tests.escapes.pods import NAMES, SERVICES, create, pod_arena, policy, reaches
from tests.escapes.table import attempts_of
from tests.sandbox_pods import SandboxPods, sandbox_pods

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def pods(node: Cluster) -> Iterator[SandboxPods]:
    """Two sandboxes, and what stands around them."""
    with sandbox_pods(node, "escapes", busybox_image(), office_image()) as made:
        create(made)
        yield made


@pytest.fixture(scope="module")
def match(pods: SandboxPods, tmp_path_factory: pytest.TempPathFactory) -> Match:
    """What became of all attempts; they are made once."""
    return asyncio.run(_played(pods, tmp_path_factory.mktemp("escapes")))


async def _played(pods: SandboxPods, folder: Path) -> Match:
    with outside() as there:
        async with pod_arena(pods, folder, there) as arena:
            return await play(arena, attempts_of(Place.POD))


@pytest.mark.parametrize("target", SERVICES)
def test_what_a_sandbox_may_not_reach_is_there_for_others(pods: SandboxPods, target: str) -> None:
    assert reaches(pods, "anybody", target, SERVICES[target])


def test_a_sandbox_is_reached_by_trial_hosts_alone(pods: SandboxPods) -> None:
    assert reaches(pods, "trial-host", NAMES[0], DEFAULT_PORT)
    assert not reaches(pods, "anybody", NAMES[0], DEFAULT_PORT)


def test_the_policy_is_stored_as_it_was_meant(pods: SandboxPods) -> None:
    meant = policy(pods, NAMES[0])
    stored = pods.namespace.get("networkpolicy", meant["metadata"]["name"])
    assert stored["spec"] == meant["spec"]
    assert stored["spec"].get("egress") is None


@pytest.mark.parametrize("attempt", attempts_of(Place.POD), ids=lambda attempt: attempt.name)
def test_in_a_pod_an_agent_that(attempt: Attempt, match: Match) -> None:
    match.check(attempt)


def test_nothing_lies_where_the_tests_come_to(match: Match) -> None:
    assert match.found_before_tests == ""
