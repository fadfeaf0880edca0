"""Which engine answers a request: the one that its session knows, else the one with the fewest requests."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from seatrial_rollout.engine.generation import EngineAddress

_MAX_SESSIONS = 100_000
"""Sessions remembered; nobody says when one ends, so that the one unused for longest is forgotten."""


class Balancer:
    """Least requests in flight, and sticky: an engine holds the keys and values of the sessions that it served."""

    def __init__(self, max_sessions: int = _MAX_SESSIONS) -> None:
        self._addresses: dict[str, EngineAddress] = {}
        self._in_flight: Counter[str] = Counter()
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._max_sessions = max_sessions

    def update(self, addresses: list[EngineAddress]) -> None:
        """Take over the engines that there are now."""
        self._addresses = {address.engine_id: address for address in addresses}

    def order(self, session: str) -> list[EngineAddress]:
        """Engines to try, the best one first; without a session (empty) only the load counts."""
        by_load = sorted(self._addresses, key=lambda engine: self._in_flight[engine])  # stable: ties keep their order
        own = self._sessions.get(session)
        if own in self._addresses:
            by_load.remove(own)
            by_load.insert(0, own)
        return [self._addresses[engine] for engine in by_load]

    @contextmanager
    def serving(self, engine_id: str, session: str) -> Iterator[None]:
        """Count a request to an engine while the block runs; its session stays with the engine."""
        if session:
            self._sessions[session] = engine_id
            self._sessions.move_to_end(session)
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        self._in_flight[engine_id] += 1
        try:
            yield
        finally:
            self._in_flight[engine_id] -= 1
            if not self._in_flight[engine_id]:
                del self._in_flight[engine_id]  # engines come and go: a name that nobody uses is not kept
