"""The pods of one world as they are known, with what was sent and not yet seen."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from seatrial_operator.sandboxes.core.pods import SandboxPod

_REMEMBERED = 10_000


class Shelf(StrEnum):
    """Where a pod stands."""

    STARTING = "Starting"
    """Not ready, or not known well enough to be handed out."""
    WARM = "Warm"
    """Ready to be handed out."""
    STALE = "Stale"
    """Unclaimed, of a former form of the world."""
    FAILED = "Failed"
    """Unclaimed, and something is wrong."""
    BINDING = "Binding"
    """A claim for it was sent."""
    CLAIMED = "Claimed"
    """A trial's."""
    GOING = "Going"
    """Deleted, by us or by others."""


@dataclass
class Stock:
    """A cache that is never behind what we did.

    The watch tells late. What we sent stands until it is seen: a creation counts as a sandbox under the name that was
    chosen for it, a deletion takes its pod away at once, an answer of a newer version outweighs an older event. So two
    looks in a row never decide the same thing twice.
    """

    revision: str = ""
    """The form of the world that is handed out."""
    _pods: dict[str, SandboxPod] = field(default_factory=dict)
    _shelves: dict[Shelf, dict[str, None]] = field(default_factory=lambda: {shelf: {} for shelf in Shelf})
    _places: dict[str, Shelf] = field(default_factory=dict)
    _making: dict[str, int | None] = field(default_factory=dict)
    """Names of pods whose creation was sent; the version once it was answered."""
    _binding: set[str] = field(default_factory=set)
    _deleting: set[str] = field(default_factory=set)
    _contested: dict[str, int] = field(default_factory=dict)
    """The version in which a pod turned out to be not as it was known."""
    _gone: dict[str, None] = field(default_factory=dict)
    """Names of the pods that went last; what comes late about them says nothing."""

    @property
    def is_empty(self) -> bool:
        """Whether no pod is known, and none is in the making."""
        return not self._pods and not self._making

    def get(self, name: str) -> SandboxPod | None:
        """A pod, if it is known."""
        return self._pods.get(name)

    def on(self, shelf: Shelf) -> Iterator[SandboxPod]:
        """Pods of a shelf, in the order in which they came there."""
        return (self._pods[name] for name in list(self._shelves[shelf]))

    def shelf(self, name: str) -> Shelf:
        """Where a pod that is known stands."""
        return self._places[name]

    def first_warm(self) -> SandboxPod | None:
        """The pod that has been warm longest."""
        name = next(iter(self._shelves[Shelf.WARM]), None)
        return None if name is None else self._pods[name]

    def count(self, *shelves: Shelf) -> int:
        """Pods of these shelves; a pod in the making is on STARTING."""
        making = len(self._making) if Shelf.STARTING in shelves else 0
        return making + sum(len(self._shelves[shelf]) for shelf in shelves)

    def observe(self, pod: SandboxPod) -> Shelf | None:
        """Take in what the API server said; the shelf that the pod comes to, none if something newer was known."""
        known = self._pods.get(pod.name)
        if pod.name in self._gone or (known is not None and known.version > pod.version):
            return None
        self._making.pop(pod.name, None)
        self._pods[pod.name] = pod
        return self._place(pod.name)

    def forget(self, name: str, version: int) -> SandboxPod | None:
        """A pod is gone as of this version; the pod as it was known, if it was."""
        known = self._pods.get(name)
        if known is None:
            self._making.pop(name, None)
            return None
        if known.version > version:
            return None
        return self._drop(name)

    def missing_from(self, names: Iterable[str], version: int) -> list[str]:
        """Pods that a list as of this version would hold if they were still there."""
        listed = set(names)
        known = [name for name, pod in self._pods.items() if name not in listed and pod.version <= version]
        made = [name for name, at in self._making.items() if name not in listed and at is not None and at <= version]
        return known + made

    def make(self, name: str) -> None:
        """The creation of a pod is sent."""
        self._making[name] = None

    def made(self, name: str, version: int) -> None:
        """The creation was answered."""
        if name in self._making:
            self._making[name] = version

    def not_made(self, name: str) -> None:
        """The creation was refused."""
        self._making.pop(name, None)

    def bind(self, name: str) -> None:
        """A claim for a pod is sent."""
        self._binding.add(name)
        self._place(name)

    def bound(self, name: str, trial: str, run: str, version: int, claimed_at: float) -> SandboxPod | None:
        """The claim was answered; the pod, if it is still there."""
        self._binding.discard(name)
        known = self._pods.get(name)
        if known is None:
            return None
        changed = replace(known, trial=trial, run=run, version=max(version, known.version), claimed_at=claimed_at)
        self._pods[name] = changed
        self._place(name)
        return changed

    def not_bound(self, name: str) -> None:
        """The claim was refused: the pod is not as it was known, until something newer is."""
        self._binding.discard(name)
        if name in self._pods:
            self._contested[name] = self._pods[name].version
            self._place(name)

    def delete(self, name: str) -> None:
        """The deletion of a pod is sent."""
        self._deleting.add(name)
        self._place(name)

    def set_revision(self, revision: str) -> None:
        """The world has another form from now on."""
        if revision != self.revision:
            self.revision = revision
            for name in list(self._pods):
                self._place(name)

    def _drop(self, name: str) -> SandboxPod:
        shelf = self._places.pop(name)
        del self._shelves[shelf][name]
        self._gone[name] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        self._deleting.discard(name)
        self._contested.pop(name, None)
        return self._pods.pop(name)

    def _place(self, name: str) -> Shelf:
        wanted, now = self._shelf_of(self._pods[name]), self._places.get(name)
        if wanted is not now:
            if now is not None:
                del self._shelves[now][name]
            self._shelves[wanted][name] = None
            self._places[name] = wanted
        return wanted

    def _shelf_of(self, pod: SandboxPod) -> Shelf:  # noqa: PLR0911  one line a shelf, in the order of their weight
        if pod.is_going or pod.name in self._deleting:
            return Shelf.GOING
        if pod.name in self._binding:
            return Shelf.BINDING
        if pod.trial:
            return Shelf.CLAIMED
        if pod.failure is not None:
            return Shelf.FAILED
        if pod.revision != self.revision:
            return Shelf.STALE
        if not pod.is_ready or pod.version <= self._contested.get(pod.name, -1):
            return Shelf.STARTING
        return Shelf.WARM
