"""The order in which claims that wait are served: the run that holds least first, in it the nearest deadline."""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_REMEMBERED = 1000


@dataclass
class WaitingClaims:
    """Trials that wait for a sandbox of one world.

    Shares are max-min fair: a run that holds many sandboxes cannot keep those that are freed from a run that holds few,
    however many trials it sends. Runs that hold equally many take turns. Heap entries whose trial has left, or has
    another deadline now, are skipped when met.
    """

    _deadlines: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Run and deadline by trial."""
    _heaps: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _served: dict[str, int] = field(default_factory=dict)
    """When a run was served last, as a count of servings; of the runs served last, in that order."""
    _turn: int = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, trial: str, run: str, deadline: float) -> None:
        """Let a trial wait until `deadline`."""
        self._deadlines[trial] = (run, deadline)
        heapq.heappush(self._heaps.setdefault(run, []), (deadline, trial))

    def remove(self, trial: str) -> None:
        """Let a trial wait no more."""
        self._deadlines.pop(trial, None)

    def take(self, held: Counter[str]) -> str | None:
        """The trial to be served next; none if none waits.

        Args:
            held: Sandboxes that each run holds.
        """
        runs = [run for run in list(self._heaps) if self._head(run) is not None]
        if not runs:
            return None
        run = min(runs, key=lambda one: (held[one], self._served.get(one, 0), self._heaps[one][0]))
        _, trial = heapq.heappop(self._heaps[run])
        del self._deadlines[trial]
        self._turn += 1
        self._served.pop(run, None)
        self._served[run] = self._turn
        if len(self._served) > _REMEMBERED:
            del self._served[next(iter(self._served))]
        return trial

    def overdue(self, now: float) -> Iterator[str]:
        """Take out every trial whose deadline has passed."""
        for run in list(self._heaps):
            while (head := self._head(run)) is not None and head[0] <= now:
                heapq.heappop(self._heaps[run])
                del self._deadlines[head[1]]
                yield head[1]

    def _head(self, run: str) -> tuple[float, str] | None:
        """The entry of the run's nearest deadline; none if nothing of the run waits."""
        heap = self._heaps[run]
        while heap:
            deadline, trial = heap[0]
            if self._deadlines.get(trial) == (run, deadline):
                return heap[0]
            heapq.heappop(heap)
        del self._heaps[run]
        return None
