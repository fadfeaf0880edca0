"""Which engine a trial talks to: the least loaded one, and then always the same, for its prefix cache."""

from collections import Counter

from seatrial_rollout.engine.generation import EngineAddress


class Router:
    """Sticky least-loaded assignment. Not a queue: trials call their engine themselves, and fall back in order."""

    def __init__(self, addresses: list[EngineAddress]) -> None:
        self._addresses: dict[str, EngineAddress] = {}
        self._assigned: dict[str, str] = {}
        self.update(addresses)

    def update(self, addresses: list[EngineAddress]) -> None:
        """Take over the engines that there are now; trials of one that is gone get another when they ask."""
        self._addresses = {address.engine_id: address for address in addresses}
        self._assigned = {trial: engine for trial, engine in self._assigned.items() if engine in self._addresses}

    def assign(self, trial_id: str) -> list[EngineAddress]:
        """Engines for a trial: its own first, then the others by load. Empty if there are none."""
        load = Counter(self._assigned.values())
        by_load = sorted(self._addresses, key=lambda engine: load[engine])  # stable: ties keep the pool's order
        if not by_load:
            return []
        own = self._assigned.setdefault(trial_id, by_load[0])
        return [self._addresses[own], *(self._addresses[engine] for engine in by_load if engine != own)]

    def release(self, trial_id: str) -> None:
        """Forget a trial that has ended. Idempotent."""
        self._assigned.pop(trial_id, None)

    def load(self) -> dict[str, int]:
        """Trials by engine."""
        return dict.fromkeys(self._addresses, 0) | Counter(self._assigned.values())
