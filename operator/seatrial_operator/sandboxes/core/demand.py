"""How many sandboxes of a world there are to be."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from seatrial_api.spec.rollout import SandboxPoolSpec


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all RolloutPools of a namespace together ask for of one world."""

    warm_min: int
    warm_max: int
    ceiling: int
    lifetime_seconds: float

    @classmethod
    def of(cls, specs: Sequence[SandboxPoolSpec]) -> "Bounds":
        """The sum of several."""
        return cls(
            warm_min=sum(spec.warm_min for spec in specs),
            warm_max=sum(spec.warm_max for spec in specs),
            ceiling=sum(spec.ceiling for spec in specs),
            lifetime_seconds=max(spec.lifetime_seconds for spec in specs),
        )


NOTHING = Bounds(warm_min=0, warm_max=0, ceiling=0, lifetime_seconds=1.0)
"""No sandbox at all."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sandboxes of one world, those on their way out aside."""

    unclaimed: int
    """Ready, or on their way to it, those included whose creation was sent and not yet seen."""
    claimed: int
    """In use, or being handed out."""
    stale: int
    """Of a former form of the world: of no use, and there until a queue lets them through to be removed."""
    waiting: int
    """Claims that wait."""


def num_missing(bounds: Bounds, target: int, counts: Counts) -> int:
    """Sandboxes to make; below zero, how many unclaimed ones there are too many.

    A claim that waits takes what is on its way before anything more is made for it; what is kept warm besides is made
    once the claims are served.
    """
    wanted = max(target, counts.waiting)
    return min(wanted, bounds.ceiling - counts.claimed - counts.stale) - counts.unclaimed


@dataclass
class Prefetches:
    """What runs said that they will claim soon. A claim uses up one; what was not renewed in time counts no more."""

    seconds: float
    """How long a word stands."""
    _wanted: dict[str, tuple[int, float]] = field(default_factory=dict)

    def put(self, run: str, count: int, now: float) -> None:
        """A run's newest word."""
        self._wanted[run] = (count, now + self.seconds)

    def use(self, run: str) -> None:
        """A run claimed one."""
        count, until = self._wanted.get(run, (0, 0.0))
        if count:
            self._wanted[run] = (count - 1, until)

    def total(self, now: float) -> int:
        """What is wanted now."""
        self._wanted = {run: word for run, word in self._wanted.items() if word[0] and word[1] > now}
        return sum(count for count, _ in self._wanted.values())

    def target(self, bounds: Bounds, now: float) -> int:
        """Sandboxes to keep warm."""
        return min(bounds.warm_max, max(bounds.warm_min, self.total(now)))
