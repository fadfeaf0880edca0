"""The queue of keys. It holds no clock and starts nothing: time comes in with each call."""

import heapq
from dataclasses import dataclass, field

from seatrial_operator.kube.resources import ObjectKey


@dataclass(frozen=True, slots=True)
class Pacing:
    """How often a key may be looked at."""

    least_interval_seconds: float = 0.5
    """Time between two looks at one key, whatever happens to it: an event storm costs no more than this."""
    first_backoff_seconds: float = 0.5
    """Wait after the first failure; it doubles with each one in a row."""
    max_backoff_seconds: float = 120.0
    """Longest wait after a failure."""


@dataclass(slots=True)
class _Item:
    due: float | None = None
    """When to look next; none while nothing asks for it."""
    last_start: float | None = None
    is_taken: bool = False
    failures: int = 0


@dataclass
class WorkQueue:
    """Keys to be looked at, each at most once in the queue and at most once in work.

    A key is due at the earliest time that anything asked for, but not before its pace allows. What asks for a key in
    work is not lost: the key is due again after it. Heap entries that a later call made untrue are skipped when met.

        add ──▶ waiting ──(due)──▶ take ──▶ in work ──▶ done | failed | forget
    """

    pacing: Pacing = Pacing()
    _items: dict[ObjectKey, _Item] = field(default_factory=dict)
    _heap: list[tuple[float, ObjectKey]] = field(default_factory=list)

    def add(self, key: ObjectKey, now: float, after_seconds: float = 0.0) -> None:
        """Ask for a look at `key`; an earlier time that was asked for stands."""
        item = self._items.setdefault(key, _Item())
        due = now + after_seconds
        if item.last_start is not None:
            due = max(due, item.last_start + self.pacing.least_interval_seconds)
        if item.due is None or due < item.due:
            item.due = due
            if not item.is_taken:
                heapq.heappush(self._heap, (due, key))

    def take(self, now: float) -> ObjectKey | None:
        """The key that has been due longest, now in work; none if none is due."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, key = heapq.heappop(self._heap)
        item = self._items[key]
        item.due, item.last_start, item.is_taken = None, now, True
        return key

    def done(self, key: ObjectKey, now: float, after_seconds: float) -> None:
        """The look at `key` went well; look again after this time, or earlier if something asks."""
        self._items[key].failures = 0
        self._release(key, now, after_seconds)

    def failed(self, key: ObjectKey, now: float) -> float:
        """The look at `key` failed; look again after a wait that grows. Returns the wait in seconds."""
        item = self._items[key]
        wait = min(self.pacing.max_backoff_seconds, self.pacing.first_backoff_seconds * 2.0**item.failures)
        item.failures = min(item.failures + 1, 32)
        self._release(key, now, wait)
        return wait

    def forget(self, key: ObjectKey, now: float) -> None:
        """The object is gone; nothing of it is kept, unless something asked for it meanwhile."""
        if self._items[key].due is None:
            del self._items[key]
        else:
            self.done(key, now, 0.0)

    def next_due(self) -> float | None:
        """When the next key is due; none if none waits."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def num_due(self, now: float) -> int:
        """Keys that are due and wait for a worker."""
        return sum(1 for item in self._items.values() if not item.is_taken and item.due is not None and item.due <= now)

    def _release(self, key: ObjectKey, now: float, after_seconds: float) -> None:
        item = self._items[key]
        item.is_taken = False
        asked, item.due = item.due, None
        self.add(key, now, after_seconds if asked is None else min(after_seconds, max(0.0, asked - now)))

    def _drop_stale(self) -> None:
        while self._heap:
            due, key = self._heap[0]
            item = self._items.get(key)
            if item is not None and not item.is_taken and item.due == due:
                return
            heapq.heappop(self._heap)
