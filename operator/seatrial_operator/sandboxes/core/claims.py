"""The trials of one world: who waits, who holds which sandbox until when, who lost one."""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from seatrial_operator.sandboxes.core.failures import Failure
from seatrial_operator.sandboxes.core.waiting import WaitingClaims


class ClaimState(StrEnum):
    """Where a claim stands."""

    WAITING = "Waiting"
    """In the queue."""
    BINDING = "Binding"
    """A sandbox was chosen and the API server is asked."""
    HELD = "Held"
    """The trial has its sandbox."""
    LOST = "Lost"
    """There is none, or no longer one."""


@dataclass
class Claim:
    """One trial's claim."""

    trial: str
    run: str
    asked_at: float
    deadline: float
    state: ClaimState = ClaimState.WAITING
    pod: str = ""
    """The sandbox; its name stays when it is lost."""
    failure: Failure | None = None
    """Why it is lost."""
    until: float = 0.0
    """Held: when the lease runs out. Lost: when the failure is forgotten."""
    served_at: float = 0.0
    is_given_back: bool = False
    """Released while the API server was asked."""


@dataclass
class Claims:
    """All claims for one world, and the one place that changes their state.

        waiting ──▶ binding ──▶ held ──▶ lost, or given back
           ▲ └────────│──────────────────▶ lost
           └──────────┘

    Leases are here and nowhere else: after a restart of the broker everyone has one full period again.
    """

    lease_seconds: float
    _claims: dict[str, Claim] = field(default_factory=dict)
    _queue: WaitingClaims = field(default_factory=WaitingClaims)
    _held: Counter[str] = field(default_factory=Counter)
    _settled: list[Claim] = field(default_factory=list)
    _looks: list[tuple[float, str]] = field(default_factory=list)
    """When each trial's hold of its sandbox is to be looked at, as a heap; it may have ended since, or been renewed."""

    @property
    def num_waiting(self) -> int:
        """Claims in the queue."""
        return len(self._queue)

    @property
    def is_empty(self) -> bool:
        """Whether there is no claim, of those that are lost neither."""
        return not self._claims

    def get(self, trial: str) -> Claim | None:
        """A trial's claim."""
        return self._claims.get(trial)

    def held_by(self, run: str) -> int:
        """Sandboxes that a run holds, those included that are being handed out."""
        return self._held[run]

    def in_state(self, state: ClaimState) -> Iterator[Claim]:
        """All claims in a state."""
        return (claim for claim in list(self._claims.values()) if claim.state is state)

    def drain_settled(self) -> list[Claim]:
        """Claims that came to be held or lost since the last call."""
        settled, self._settled = self._settled, []
        return settled

    def ask(self, trial: str, run: str, deadline: float, now: float) -> Claim:
        """Let a trial wait; one that waits already, or is about to be served, waits for the later deadline."""
        claim = self._claims.get(trial)
        if claim is None or claim.state is ClaimState.LOST:
            claim = self._claims[trial] = Claim(trial, run, asked_at=now, deadline=deadline)
        claim.deadline = max(claim.deadline, deadline)
        if claim.state is ClaimState.WAITING:
            self._queue.add(trial, claim.run, claim.deadline)
        return claim

    def next(self, pod: str) -> Claim | None:
        """Whose turn it is; that claim is being bound to `pod` from now on."""
        trial = self._queue.take(self._held)
        if trial is None:
            return None
        claim = self._claims[trial]
        claim.state, claim.pod = ClaimState.BINDING, pod
        self._held[claim.run] += 1
        return claim

    def put_back(self, claim: Claim) -> None:
        """The sandbox was not to be had: the claim waits again, at its old deadline."""
        self._let_go(claim.run)
        if claim.is_given_back:
            self._claims.pop(claim.trial, None)
            return
        claim.state, claim.pod = ClaimState.WAITING, ""
        self._queue.add(claim.trial, claim.run, claim.deadline)

    def hold(self, claim: Claim, pod: str, now: float) -> None:
        """The sandbox is the trial's."""
        if claim.state is ClaimState.WAITING:
            self._queue.remove(claim.trial)
            self._held[claim.run] += 1
        claim.state, claim.pod = ClaimState.HELD, pod
        claim.until, claim.served_at = now + self.lease_seconds, now
        self._settled.append(claim)
        self.look_again(claim, now)

    def adopt(self, trial: str, run: str, pod: str, now: float) -> Claim:
        """A sandbox that was claimed before this broker began is the trial's, for a full period."""
        claim = self._claims[trial] = Claim(trial, run, asked_at=now, deadline=now)
        self.hold(claim, pod, now)
        return claim

    def lose(self, claim: Claim, failure: Failure, now: float) -> None:
        """There is no sandbox for the trial any more; that is remembered for a period, for whoever asks."""
        if claim.state is ClaimState.WAITING:
            self._queue.remove(claim.trial)
        elif claim.state in {ClaimState.BINDING, ClaimState.HELD}:
            self._let_go(claim.run)
        claim.state, claim.failure, claim.until = ClaimState.LOST, failure, now + self.lease_seconds
        self._settled.append(claim)

    def end(self, claim: Claim) -> None:
        """The trial needs no sandbox any more; not for claims that are being bound."""
        if claim.state is ClaimState.WAITING:
            self._queue.remove(claim.trial)
        elif claim.state is ClaimState.HELD:
            self._let_go(claim.run)
        del self._claims[claim.trial]

    def overdue(self, now: float) -> list[Claim]:
        """Claims that waited until their deadline; they are out of the queue."""
        return [self._claims[trial] for trial in self._queue.overdue(now)]

    def look_again(self, claim: Claim, at: float) -> None:
        """Have a claim that is held among those of `to_look_at` from then on, once."""
        heapq.heappush(self._looks, (at, claim.trial))

    def to_look_at(self, now: float) -> Iterator[Claim]:
        """Claims that are held and whose time may be over: each once in a lease's time at most."""
        while self._looks and self._looks[0][0] <= now:
            _, trial = heapq.heappop(self._looks)
            claim = self._claims.get(trial)
            if claim is not None and claim.state is ClaimState.HELD:
                yield claim

    def forget_lost(self, now: float) -> None:
        """Forget failures that nobody asked for."""
        for claim in self.in_state(ClaimState.LOST):
            if claim.until <= now:
                del self._claims[claim.trial]

    def _let_go(self, run: str) -> None:
        self._held[run] -= 1
        if not self._held[run]:
            del self._held[run]
