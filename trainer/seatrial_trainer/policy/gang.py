"""Places for all ranks of a policy, taken together or not at all."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import InvalidInputError

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Gang:
    """One Ray placement group, a bundle for each rank.

    Ranks that wait for each other must not wait for their places one by one: two policies that each got half of theirs
    would never start. Ranks are counted node by node, so that neighbours, which exchange the most, share a node
    wherever nodes have room for a power of two of them.
    """

    group: Any
    bundles: list[int]
    """Bundle of each rank."""
    rank_options: Mapping[str, Any]

    @classmethod
    async def reserve(
        cls, num_ranks: int, rank_options: Mapping[str, Any], *, timeout_seconds: float, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Take the places.

        Args:
            num_ranks: How many.
            rank_options: Ray options of each rank's actor; its resources are what a place has to offer.
            timeout_seconds: How long others may hold what is wanted.
            clock: The time.

        Raises:
            InvalidInputError: Ray has less than that, however long one waits.
            WaitTimeoutError: it was not free in time, or no node has enough of it.
        """
        bundle = _bundle(rank_options)
        _check_enough(num_ranks, bundle, ray.cluster_resources())
        group = placement_group([bundle] * num_ranks, strategy="PACK")
        deadline = Deadline.after(timeout_seconds, clock)
        try:
            while not await asyncio.to_thread(group.wait, _LOOK_SECONDS):
                deadline.check(f"{num_ranks} places with {_words(bundle)} each for the policy's ranks")
        except BaseException:
            remove_placement_group(group)
            raise
        node_of = placement_group_table(group)["bundles_to_node_id"]
        return cls(group, sorted(node_of, key=lambda index: (node_of[index], index)), rank_options)

    def options(self, rank: int) -> dict[str, Any]:
        """Ray options of a rank's actor, in its place."""
        place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundles[rank])
        return {**self.rank_options, "scheduling_strategy": place}

    def release(self) -> None:
        """Give the places back; safe to repeat."""
        remove_placement_group(self.group)


def _bundle(options: Mapping[str, Any]) -> dict[str, float]:
    counts = {"CPU": options.get("num_cpus", 0), "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
    return {name: float(count) for name, count in counts.items() if count}


def _check_enough(num_ranks: int, bundle: Mapping[str, float], offered: Mapping[str, float]) -> None:
    for name, count in bundle.items():
        wanted, found = num_ranks * count, offered.get(name, 0.0)
        if wanted > found:
            msg = f"trainer.ranks: {num_ranks} ranks want {wanted:g} {name} together and Ray has {found:g}; lower it"
            raise InvalidInputError(msg)


def _words(bundle: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in bundle.items())
