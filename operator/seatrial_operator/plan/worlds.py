"""What a WorldImage comes to: the digest that is held, and what its conditions say."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from seatrial_api.conditions import WorldCondition
from seatrial_api.world_image import WorldImage, WorldImageStatus
from seatrial_operator.plan.actions import Story
from seatrial_operator.plan.inspection import InspectionPlan
from seatrial_operator.plan.prepull import PullPlan
from seatrial_operator.plan.statements import Statement, conditions, readiness, stories

_TOKEN_MARGIN = timedelta(hours=6)
"""Half the life of an ECR token: one failed renewal after the other goes by before a node misses it."""


_QUIET = frozenset({"Inspecting", "Pulling"})


@dataclass(frozen=True, slots=True)
class Found:
    """The registry told what the image is now."""

    digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The registry lacks the image, or does not let us see it."""

    reason: Literal["NotFound", "Unauthorized"]
    message: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The registry did not answer."""

    message: str


type Lookup = Found | Refused | Unreachable
"""The newest answer of the registry."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What is known of the image."""

    digest: str | None
    """The digest that sandboxes are made of; none while it is not known."""
    statement: Statement
    moved_to: str | None = None
    """What the tag has come to stand for since it was resolved."""


def resolve(world: WorldImage, lookup: Lookup) -> Resolution:
    """Settle on a digest. A tag is resolved once and then held: a company must not change under a run's feet."""
    image, status = world.spec.image, world.status
    name, _, pinned = image.partition("@")
    held = pinned or (status.digest if status and status.image == image else None)
    resolved = WorldCondition.RESOLVED.value
    match lookup:
        case Found(digest) if held in {None, digest}:
            return Resolution(digest, Statement(resolved, "True", "DigestKnown", f"{image} is {digest}"))
        case Found(digest):
            message = (
                f"{image} was {held} when it was resolved, and is held; its tag now stands for {digest}: "
                f"set spec.image to {_untagged(name)}@{digest} to take that over"
            )
            return Resolution(held, Statement(resolved, "True", "DigestKnown", message), moved_to=digest)
        case Refused(reason, message):
            return Resolution(held, Statement(resolved, "False", reason, message))
        case Unreachable(message) if held:
            message = f"{image} is {held} as far as is known; {message}"
            return Resolution(held, Statement(resolved, "True", "DigestKnown", message))
        case Unreachable(message):
            return Resolution(None, Statement(resolved, "Unknown", "Unreachable", message))


def _untagged(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """All that is known of a world."""

    resolution: Resolution
    pulls: PullPlan | None = None
    """How far the nodes are; none when `prePull` is off, or while there is no digest."""
    inspection: InspectionPlan = field(default_factory=InspectionPlan)


def world_status(world: WorldImage, generation: int, plan: WorldPlan, now: datetime) -> WorldImageStatus:
    """The whole status.

    Args:
        world: The world.
        generation: Its `metadata.generation`.
        plan: What is known of it.
        now: The time.
    """
    resolution, pulls = plan.resolution, plan.pulls
    statements = [resolution.statement]
    if world.spec.pre_pull is not None:
        statements.append(_cached(pulls))
    if plan.inspection.statement is not None:
        statements.append(plan.inspection.statement)
    ready = readiness(statements, "sandboxes of this world can be claimed")
    former = world.status or WorldImageStatus()
    return WorldImageStatus(
        observed_generation=generation,
        conditions=conditions([*statements, ready], former.conditions, now, generation),
        image=world.spec.image if resolution.digest else None,
        digest=resolution.digest,
        nodes_cached=pulls.num_pulled if pulls else 0,
        nodes_wanted=pulls.num_wanted if pulls else 0,
        inspection=plan.inspection.status,
    )


def world_stories(former: WorldImageStatus, status: WorldImageStatus, resolution: Resolution) -> list[Story]:
    """What happened to a world between two statuses."""
    told = stories(former.conditions, status.conditions, _QUIET)
    was_told = any(resolution.statement.message == one.message for one in former.conditions)
    if resolution.moved_to and not was_told:
        told.append(Story("Warning", "TagMoved", resolution.statement.message))
    return told


def is_renewal_due(
    expires_at: datetime | None, registries: Collection[str], wanted: Collection[str], now: datetime
) -> bool:
    """Whether a pull secret needs new tokens.

    Args:
        expires_at: When its first token expires; none if there is no secret.
        registries: The registries that it is for.
        wanted: The registries that it shall be for.
        now: The time.
    """
    return expires_at is None or set(registries) != set(wanted) or now >= renewal_time(expires_at)


def renewal_time(expires_at: datetime) -> datetime:
    """When to renew a token that expires then."""
    return expires_at - _TOKEN_MARGIN


def _cached(pulls: PullPlan | None) -> Statement:
    cached = WorldCondition.CACHED.value
    if pulls is None:
        return Statement(cached, "False", "Pulling", "waiting for the image's digest")
    if pulls.num_wanted == 0:
        return Statement(cached, "False", "Pulling", "no node that is ready has the labels of prePull.nodeSelector")
    progress = f"{pulls.num_pulled} of {pulls.num_wanted} nodes hold the image"
    if pulls.num_pulled == pulls.num_wanted:
        return Statement(cached, "True", "Pulled", progress)
    if pulls.failures:
        first = pulls.failures[0]
        others = f" and {len(pulls.failures) - 1} more" if len(pulls.failures) > 1 else ""
        return Statement(cached, "False", "PullFailed", f"{progress}; {first.node}{others}: {first.message}")
    return Statement(cached, "False", "Pulling", progress)
