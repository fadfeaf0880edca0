"""Which task is tried next: domain shares, epochs without repetition, and preference for tasks of the right difficulty.

Nothing here is drawn from a generator. Domains take turns by smooth weighted round-robin, so that shares are exact
over any stretch; inside a domain an epoch visits the tasks in the order of a seeded hash, so that the order depends
neither on the machine nor on the order of the list; a task outside its domain's pass-rate bounds is taken at every
fourth visit. The state is small, readable, and gives the same tasks again.
"""

import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from pydantic import Field

from seatrial_api.base import ApiModel
from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.data import Domain

_OFF_LEVEL_WEIGHT = 0.25
_PASS_RATE_MEMORY = 0.5


class TaskLike(Protocol):
    """What the sampler has to know of a task."""

    @property
    def name(self) -> str:
        """Unique within the set."""
        ...

    @property
    def domain(self) -> str:
        """Domain that the task belongs to."""
        ...


@dataclass(frozen=True, slots=True)
class SampledTask:
    """A task that was drawn."""

    name: str
    domain: str


class DomainCursor(ApiModel):
    """Where sampling stands in one domain."""

    num_drawn: int = 0
    """Tasks drawn from the domain."""
    epoch: int = 0
    """Passes over the domain's tasks."""
    position: int = 0
    """Place in the current pass."""


class SamplerState(ApiModel):
    """All that decides the next draws, besides the tasks, the domains and the seed."""

    cursors: dict[str, DomainCursor] = Field(default_factory=dict)
    """Cursor by domain."""
    put_back: list[str] = Field(default_factory=list)
    """Tasks that go first, in order."""
    retired: list[str] = Field(default_factory=list)
    """Tasks that are never drawn again."""
    pass_rates: dict[str, float] = Field(default_factory=dict)
    """Running pass rate of each task tried so far."""
    visits: dict[str, float] = Field(default_factory=dict)
    """Weight that a task outside its bounds has gathered since it was last drawn."""


class Sampler:
    """An endless, deterministic, resumable sequence of tasks."""

    def __init__(self, tasks: Iterable[TaskLike], domains: Sequence[Domain] = (), *, seed: int = 0) -> None:
        """Begin at the first task.

        Raises:
            InvalidInputError: if there is no task, or domains and tasks don't match.
        """
        self._domain_of = {task.name: task.domain for task in tasks}
        self._seed = seed
        self._domains = {domain.name: domain for domain in domains}
        self._members: dict[str, list[str]] = defaultdict(list)
        for name, domain in self._domain_of.items():
            self._members[domain if domains else ""].append(name)
        self._check()
        self._orders: dict[str, tuple[int, list[str]]] = {}
        self.restore(SamplerState())

    def state(self) -> SamplerState:
        """Everything that `restore` needs to go on from here."""
        return SamplerState(
            cursors=self._cursors.copy(),
            put_back=self._put_back.copy(),
            retired=sorted(self._retired),
            pass_rates=self._pass_rates.copy(),
            visits=self._visits.copy(),
        )

    def restore(self, state: SamplerState) -> None:
        """Go on from a state; tasks that are no longer in the set are forgotten."""
        known = self._domain_of.keys()
        self._cursors = {name: state.cursors.get(name, DomainCursor()) for name in self._members}
        self._put_back = [name for name in state.put_back if name in known]
        self._retired = set(state.retired) & known
        self._pass_rates = {name: rate for name, rate in state.pass_rates.items() if name in known}
        self._visits = {name: visits for name, visits in state.visits.items() if name in known}

    def draw(self) -> SampledTask:
        """The next task.

        Raises:
            InvalidInputError: if every task was retired.
        """
        name = self._put_back.pop(0) if self._put_back else self._next_in(self._next_domain())
        return SampledTask(name, self._domain_of[name])

    def peek(self, count: int) -> list[SampledTask]:
        """The next tasks without drawing them, for sandboxes to be warmed; a report to come may change them."""
        ahead = copy.copy(self)
        ahead.restore(self.state())
        return [ahead.draw() for _ in range(count)]

    def put_back(self, task: str) -> None:
        """Draw this task again before any other: its group ended for no fault of its own."""
        if task not in self._retired:
            self._put_back.append(task)

    def retire(self, task: str) -> None:
        """Never draw this task again: it cannot be graded."""
        self._retired.add(task)
        self._put_back = [name for name in self._put_back if name != task]

    def observe(self, task: str, pass_rate: float) -> None:
        """A group of this task was trained with this share of its trials solved."""
        before = self._pass_rates.get(task, pass_rate)
        self._pass_rates[task] = _PASS_RATE_MEMORY * before + (1 - _PASS_RATE_MEMORY) * pass_rate

    def _next_domain(self) -> str:
        live = [name for name, members in self._members.items() if not self._retired.issuperset(members)]
        if not live:
            raise InvalidInputError("data.train: every task turned out to be broken; see the warnings for their errors")
        return min(live, key=lambda name: (self._cursors[name].num_drawn + 1) / self._weight(name))

    def _next_in(self, domain: str) -> str:
        cursor = self._cursors[domain]
        epoch, position = cursor.epoch, cursor.position
        while True:
            order = self._order(domain, epoch)
            for name in islice(order, position, None):
                position += 1
                if name not in self._retired and self._is_due(name):
                    self._cursors[domain] = DomainCursor(num_drawn=cursor.num_drawn + 1, epoch=epoch, position=position)
                    return name
            epoch, position = epoch + 1, 0

    def _is_due(self, task: str) -> bool:
        visits = self._visits.pop(task, 0.0) + (_OFF_LEVEL_WEIGHT if self._is_off_level(task) else 1.0)
        if visits >= 1.0:
            return True
        self._visits[task] = visits
        return False

    def _is_off_level(self, task: str) -> bool:
        domain = self._domains.get(self._domain_of[task])
        rate = self._pass_rates.get(task)
        if domain is None or domain.difficulty is None or rate is None:
            return False
        return not domain.difficulty.min_pass_rate <= rate <= domain.difficulty.max_pass_rate

    def _order(self, domain: str, epoch: int) -> list[str]:
        if self._orders.get(domain, (-1, []))[0] != epoch:
            ordered = sorted(self._members[domain], key=lambda name: _rank(self._seed, epoch, name))
            self._orders[domain] = epoch, ordered
        return self._orders[domain][1]

    def _weight(self, domain: str) -> float:
        return self._domains[domain].weight if domain in self._domains else 1.0

    def _check(self) -> None:
        if not self._members:
            raise InvalidInputError("data.train: there is no task to draw")
        if self._domains and (unlisted := self._members.keys() - self._domains.keys()):
            raise InvalidInputError(
                f"data.domains: tasks belong to {sorted(unlisted)}, the list has {sorted(self._domains)}; "
                "add what is missing, or leave the list empty to count every task the same"
            )
        if empty := self._domains.keys() - self._members.keys():
            raise InvalidInputError(f"data.domains: no training task belongs to {sorted(empty)}; remove it")


def _rank(seed: int, epoch: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{epoch}/{name}".encode(), digest_size=8).digest()
