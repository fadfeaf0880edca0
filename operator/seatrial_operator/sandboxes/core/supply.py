"""How many sandboxes are made and which are removed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from seatrial_operator.sandboxes.core.actions import Create
from seatrial_operator.sandboxes.core.demand import NOTHING, Bounds, Counts, Prefetches, num_missing
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.health import Health
from seatrial_operator.sandboxes.core.ledger import Ledger, deleted
from seatrial_operator.sandboxes.core.patience import Patience
from seatrial_operator.sandboxes.core.pods import SandboxPod
from seatrial_operator.sandboxes.core.stock import Shelf


@dataclass
class Supply:
    """Makes the sandboxes that are missing and removes unclaimed ones that are too many, too old, or broken.

    A pod that a queue such as Kueue holds back (`is_gated`) is never removed, whatever else is true of it: the queue
    has admitted it, or is about to, and would be left with a workload that has no pod.
    """

    new_name: Callable[[], str]
    """A name that no pod had before."""
    ledger: Ledger
    health: Health
    patience: Patience
    prefetches: Prefetches
    bounds: Bounds = NOTHING
    _failing_since: dict[str, float] = field(default_factory=dict)
    _surplus_since: float | None = None

    def target(self, now: float) -> int:
        """Sandboxes to keep warm."""
        return self.prefetches.target(self.bounds, now)

    def counts(self) -> Counts:
        """How many there are."""
        stock = self.ledger.stock
        return Counts(
            unclaimed=stock.count(Shelf.STARTING, Shelf.WARM, Shelf.FAILED),
            claimed=stock.count(Shelf.CLAIMED, Shelf.BINDING),
            stale=stock.count(Shelf.STALE),
            waiting=self.ledger.claims.num_waiting,
        )

    def plan(self, now: float) -> None:
        """Have pods made and removed until there are as many as there are to be."""
        stock = self.ledger.stock
        if stock.revision:
            for pod in stock.on(Shelf.STALE):
                self._remove(pod)
        missing = num_missing(self.bounds, self.target(now), self.counts())
        if missing < 0:
            self._shrink(-missing, now)
            return
        self._surplus_since = None
        for _ in range(self.health.at_once(missing, stock.count(Shelf.STARTING), now)):
            name = self.new_name()
            stock.make(name)
            self.ledger.send(Create(name))

    # --- answers

    def created(self, name: str, version: int | None) -> None:
        """A pod was made, as of this version; none if it is gone again already."""
        self.ledger.tally.created += 1
        self.health.has_room()
        if version is None:
            self.ledger.stock.not_made(name)
        else:
            self.ledger.stock.made(name, version)

    def refused(self, name: str, failure: Failure, now: float) -> None:
        """A pod was not made."""
        self.ledger.stock.not_made(name)
        self.health.fail(failure, now)

    def unknown(self, name: str) -> None:
        """No answer told whether a pod was made."""
        self.ledger.send(Create(name, again=True))

    # --- the watch

    def observe(self, pod: SandboxPod, shelf: Shelf, now: float) -> None:
        """What the API server says of a pod."""
        if shelf is Shelf.WARM:
            self.health.is_well()
        if shelf is Shelf.FAILED:
            self._failing_since.setdefault(pod.name, now)
        else:
            self._failing_since.pop(pod.name, None)

    def forget(self, name: str, now: float) -> None:
        """A pod is gone."""
        self._failing_since.pop(name, None)
        self.health.may_have_room(now)

    # --- time

    def tick(self, now: float, wall: float) -> None:
        """Remove what came to nothing, and what is too old."""
        self._remove_slow(now, wall)
        self._remove_failed(now)
        self._retire(wall)

    def _remove_slow(self, now: float, wall: float) -> None:
        for pod in self.ledger.stock.on(Shelf.STARTING):
            if pod.is_scheduled and pod.unready_since + self.patience.start <= wall:
                told = f"pod {pod.name} was not ready for {self.patience.start:.0f} s; see its containers' logs"
                self._give_up(pod, Failure(FailureKind.CONTAINER, told), now)

    def _remove_failed(self, now: float) -> None:
        """A pull that fails may yet succeed, and has some time for it."""
        for pod in self.ledger.stock.on(Shelf.FAILED):
            since = self._failing_since.setdefault(pod.name, now)
            failure = pod.failure or deleted(pod.name)
            self.health.notice(failure, now)
            if failure.kind is not FailureKind.IMAGE_PULL or now >= since + self.patience.trouble:
                self._give_up(pod, failure, now)

    def _retire(self, wall: float) -> None:
        """Replace warm pods that are too old, a few at a time, so that there are always young ones."""
        stock = self.ledger.stock
        at_once = max(1, stock.count(Shelf.WARM) // 10) - stock.count(Shelf.STARTING)
        for pod in islice(stock.on(Shelf.WARM), max(0, at_once)):
            if pod.created_at + self.bounds.lifetime_seconds > wall:
                return  # those behind it are younger still
            self._remove(pod)

    def _shrink(self, surplus: int, now: float) -> None:
        """Once there have been too many for a while, remove the newest that are not ready, then the oldest that are.

        Gated pods stay, and are nobody's yet: what is warm is not removed on their account.
        """
        if self._surplus_since is None:
            self._surplus_since = now
        if now < self._surplus_since + self.patience.surplus:
            return
        starting = list(self.ledger.stock.on(Shelf.STARTING))
        surplus -= sum(pod.is_gated for pod in starting)
        free = [pod for pod in reversed(starting) if not pod.is_gated]
        for pod in [*free, *self.ledger.stock.on(Shelf.WARM)][: max(0, surplus)]:
            self._remove(pod)

    def _give_up(self, pod: SandboxPod, failure: Failure, now: float) -> None:
        self.health.fail(failure, now)
        self.ledger.tally.add_failure()
        self._remove(pod)

    def _remove(self, pod: SandboxPod) -> None:
        if not pod.is_gated:
            self.ledger.delete(pod.name)
