"""What a WorldImage comes to, table by table."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from seatrial_api.conditions import Condition
from seatrial_api.world_image import WorldImageStatus
from seatrial_operator.plan.prepull import PullPlan, PullPod, PullState
from seatrial_operator.plan.worlds import (
    Found,
    Lookup,
    Refused,
    Unreachable,
    WorldPlan,
    is_renewal_due,
    resolve,
    world_status,
)
from tests.worlds import DIGEST, OTHER, world

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
TAG = "ghcr.io/worlds/acme:v1"
HELD = WorldImageStatus(image=TAG, digest=DIGEST)
OTHER_IMAGE = WorldImageStatus(image="ghcr.io/worlds/acme:v0", digest=OTHER)


@pytest.mark.parametrize(
    ("status", "lookup", "digest", "said"),
    [
        (None, Found(DIGEST), DIGEST, "True DigestKnown"),
        (HELD, Found(DIGEST), DIGEST, "True DigestKnown"),
        (OTHER_IMAGE, Found(DIGEST), DIGEST, "True DigestKnown"),
        (HELD, Found(OTHER), DIGEST, "True DigestKnown"),
        (None, Refused("NotFound", "none"), None, "False NotFound"),
        (HELD, Refused("Unauthorized", "no"), DIGEST, "False Unauthorized"),
        (OTHER_IMAGE, Refused("NotFound", "none"), None, "False NotFound"),
        (None, Unreachable("down"), None, "Unknown Unreachable"),
        (HELD, Unreachable("down"), DIGEST, "True DigestKnown"),
        (OTHER_IMAGE, Unreachable("down"), None, "Unknown Unreachable"),
    ],
)
def test_a_tag_is_resolved_once_and_then_held(
    status: WorldImageStatus | None, lookup: Lookup, digest: str | None, said: str
) -> None:
    resolution = resolve(world(status), lookup)
    statement = resolution.statement
    assert (resolution.digest, f"{statement.status} {statement.reason}") == (digest, said)


def test_a_tag_that_moved_is_told_with_the_way_to_follow_it() -> None:
    resolution = resolve(world(HELD), Found(OTHER))
    assert resolution.moved_to == OTHER
    assert f"set spec.image to ghcr.io/worlds/acme@{OTHER}" in resolution.statement.message


def test_an_image_by_digest_is_that_digest_even_while_its_registry_is_down() -> None:
    pinned = world(image=f"registry:5000/acme:v1@{DIGEST}")
    assert resolve(pinned, Unreachable("down")).digest == DIGEST


def pulls(num_pulled: int, num_wanted: int, *failures: str) -> PullPlan:
    """How far nodes are; each failure names a node."""
    failing = tuple(PullPod(f"pull-{node}", "u", node, "i", PullState.FAILING, "no space") for node in failures)
    return PullPlan((), (), num_wanted, num_pulled, failing)


@pytest.mark.parametrize(
    ("spec", "lookup", "how_far", "said"),
    [
        ({}, Found(DIGEST), None, ["Resolved True DigestKnown", "Ready True Ready"]),
        ({}, Unreachable("down"), None, ["Resolved Unknown Unreachable", "Ready False Resolved"]),
        (
            {"prePull": {}},
            Found(DIGEST),
            pulls(3, 3),
            ["Resolved True DigestKnown", "Cached True Pulled", "Ready True Ready"],
        ),
        (
            {"prePull": {}},
            Found(DIGEST),
            pulls(1, 3),
            ["Resolved True DigestKnown", "Cached False Pulling", "Ready False Cached"],
        ),
        (
            {"prePull": {}},
            Found(DIGEST),
            pulls(1, 3, "n2"),
            ["Resolved True DigestKnown", "Cached False PullFailed", "Ready False Cached"],
        ),
        (
            {"prePull": {}},
            Found(DIGEST),
            pulls(0, 0),
            ["Resolved True DigestKnown", "Cached False Pulling", "Ready False Cached"],
        ),
        (
            {"prePull": {}},
            Refused("NotFound", "none"),
            None,
            ["Resolved False NotFound", "Cached False Pulling", "Ready False Resolved"],
        ),
    ],
)
def test_conditions_tell_the_state(
    spec: dict[str, Any], lookup: Lookup, how_far: PullPlan | None, said: list[str]
) -> None:
    wanted = world(**spec)
    status = world_status(wanted, 4, WorldPlan(resolve(wanted, lookup), how_far), NOW)
    assert [f"{one.type} {one.status} {one.reason}" for one in status.conditions] == said
    assert status.observed_generation == 4


def test_a_failed_pull_names_the_node_and_the_cause() -> None:
    wanted = world(prePull={})
    status = world_status(wanted, 1, WorldPlan(resolve(wanted, Found(DIGEST)), pulls(1, 4, "n2", "n3")), NOW)
    assert status.conditions[1].message == "1 of 4 nodes hold the image; n2 and 1 more: no space"
    assert (status.nodes_cached, status.nodes_wanted) == (1, 4)


def test_the_time_of_a_transition_stays_while_the_status_does() -> None:
    before = NOW - timedelta(hours=1)
    resolved, ready = (
        Condition(type=name, status=said, reason="X", last_transition_time=before, observed_generation=1)
        for name, said in (("Resolved", "True"), ("Ready", "False"))
    )
    wanted = world(HELD.model_copy(update={"conditions": [resolved, ready]}))
    status = world_status(wanted, 2, WorldPlan(resolve(wanted, Found(DIGEST))), NOW)
    assert [one.last_transition_time for one in status.conditions] == [before, NOW]


@pytest.mark.parametrize(
    ("expires_in", "registries", "wanted", "is_due"),
    [
        (None, [], ["a"], True),
        (timedelta(hours=12), ["a"], ["a"], False),
        (timedelta(hours=6, seconds=1), ["a"], ["a"], False),
        (timedelta(hours=6), ["a"], ["a"], True),
        (timedelta(hours=-1), ["a"], ["a"], True),
        (timedelta(hours=12), ["a"], ["a", "b"], True),
        (timedelta(hours=12), ["a", "b"], ["b", "a"], False),
    ],
)
def test_tokens_are_renewed_at_half_their_life_and_when_registries_change(
    expires_in: timedelta | None, registries: list[str], wanted: list[str], is_due: bool
) -> None:
    expires_at = None if expires_in is None else NOW + expires_in
    assert is_renewal_due(expires_at, registries, wanted, NOW) == is_due
