"""Tells who makes sandboxes which trials come next, so that they find them warm."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_trainer.scheduling.dispatcher import Planned

_LOOK_SECONDS = 5.0
_STANDS_SECONDS = 60.0
"""Time after which the same word is said again: the broker forgets it after minutes, and claims use it up."""


@dataclass
class Forecast:
    """Looks again and again at the trials to come, and counts them by world.

    A sandbox takes seconds to come up, and a step's weights let a batch of groups start at once. While that step is
    computed, its groups are known already.
    """

    upcoming: Callable[[], Counter[Planned]]
    """Trials that start soon."""
    world_of: Callable[[str, str], str]
    """World of a purpose's task."""
    tell: Callable[[Mapping[str, int]], Awaitable[None]]
    """Passes on how many trials of which world there will be; it raises nothing."""
    clock: Clock = SYSTEM_CLOCK
    _told: Counter[str] = field(default_factory=Counter, init=False)
    _told_at: float = field(default=float("-inf"), init=False)

    async def run(self) -> None:
        """Look and tell, for ever."""
        while True:
            await self.clock.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        trials: Counter[str] = Counter()
        for (purpose, task), count in self.upcoming().items():
            trials[self.world_of(purpose, task)] += count
        if trials == self._told and self.clock.now() - self._told_at < _STANDS_SECONDS:
            return
        gone = dict.fromkeys(self._told.keys() - trials.keys(), 0)  # or their last word would stand
        await self.tell(gone | trials)
        self._told, self._told_at = trials, self.clock.now()
