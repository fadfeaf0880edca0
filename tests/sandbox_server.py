"""An API server for the broker's core, driven step by step: versions, a watch that lags, answers that are lost."""

import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from seatrial_operator.sandboxes.core.actions import Action, Bind, Create, Delete, Look
from seatrial_operator.sandboxes.core.demand import Bounds
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.pods import SandboxPod
from seatrial_operator.sandboxes.core.pool import Pool

WORLD = "acme"
REVISION = "r1"
BOUNDS = Bounds(warm_min=2, warm_max=8, ceiling=10, lifetime_seconds=7200)
_BROKERS = itertools.count()


def new_pool() -> Pool:
    """The pool of a broker that has just begun."""
    numbers, broker = itertools.count(), next(_BROKERS)
    pool = Pool(WORLD, lambda: f"{WORLD}-{broker}-{next(numbers)}")
    pool.become(BOUNDS, REVISION, None)
    return pool


@dataclass
class SandboxServer:
    """The truth about pods, and who was ever given which."""

    pods: dict[str, SandboxPod] = field(default_factory=dict)
    version: int = 0
    quota: int = 10_000
    has_queue: bool = False
    """Whether pods are held back by gates until a queue admits them."""
    revision: str = REVISION
    """Of the pods that are made from now on."""
    events: deque[tuple[str, SandboxPod]] = field(default_factory=deque)
    """What the watch has still to tell."""
    creates: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    owners: dict[str, set[str]] = field(default_factory=dict)
    """Trials by the pod that was ever theirs."""
    reaped: list[str] = field(default_factory=list)
    """Pods that were deleted while a gate held them back."""

    def put(self, pod: SandboxPod) -> SandboxPod:
        """Store a pod in its next version."""
        self.version += 1
        pod = self.pods[pod.name] = replace(pod, version=self.version)
        self.events.append(("PUT", pod))
        return pod

    def remove(self, name: str, failure: Failure | None = None) -> None:
        """A pod goes away."""
        self.version += 1
        pod = replace(self.pods.pop(name), version=self.version, is_going=True, failure=failure)
        self.events.append(("GONE", pod))

    def create(self, name: str) -> SandboxPod | str:
        """Make a pod; `exists`, `quota`, or the pod."""
        self.writes["create"] += 1
        if name in self.creates:
            return "exists"
        if len(self.pods) >= self.quota:
            return "quota"
        self.creates[name] += 1
        made = SandboxPod(name, f"uid-{name}", 0, WORLD, self.revision, created_at=0.0, is_gated=self.has_queue)
        return self.put(made)

    def bind(self, action: Bind) -> SandboxPod | None:
        """Give a pod to a trial if it is as it was; none on a conflict."""
        self.writes["bind"] += 1
        now = self.pods.get(action.pod.name)
        if now is None or now.version != action.pod.version:
            return None
        self.owners.setdefault(now.name, set()).add(action.trial)
        return self.put(replace(now, trial=action.trial, run=action.run, claimed_at=0.0))

    def delete(self, action: Delete) -> None:
        """Delete a pod, if it is there."""
        self.writes["delete"] += 1
        if action.name in self.pods:
            if self.pods[action.name].is_gated:
                self.reaped.append(action.name)
            self.remove(action.name)

    def carry_out_late(self, action: Action) -> int:
        """A dead broker's request arrives; how many pods it made."""
        match action:
            case Create():
                return int(isinstance(self.create(action.name), SandboxPod))
            case Bind():
                self.bind(action)
            case Delete():
                self.delete(action)
            case Look():
                pass
            case _:
                assert_never(action)
        return 0

    def make_ready(self, name: str) -> None:
        """A pod is admitted, if it was not, and its containers are ready."""
        ready = replace(self.pods[name], is_ready=True, is_scheduled=True, address="10.0.0.1", node="node")
        self.put(replace(ready, is_gated=False))


@dataclass
class Driver:
    """Carries a pool's actions out on a server and tells the pool; the order is the caller's."""

    server: SandboxServer
    pool: Pool
    now: float = 0.0
    sent: list[Action] = field(default_factory=list)
    """Actions that are on their way."""

    def send(self) -> None:
        """Take what the pool wants to send."""
        self.sent += self.pool.actions(self.now)

    def arrive(self, action: Action, *, is_carried_out: bool = True, is_answered: bool = True) -> None:
        """An action reaches the server, or does not, and its answer reaches the pool, or does not."""
        self.sent.remove(action)
        answer = self._carry_out(action) if is_carried_out else None
        if answer is not None and is_answered:
            answer()
        else:
            self._unknown(action)

    def tell(self, count: int = 1) -> None:
        """The watch tells some of what happened."""
        for _ in range(min(count, len(self.server.events))):
            kind, pod = self.server.events.popleft()
            if kind == "GONE":
                self.pool.gone(pod, self.now)
            else:
                self.pool.observe(pod, self.now)

    def relist(self) -> None:
        """The watch broke and begins anew."""
        self.server.events.clear()
        self.pool.reset(list(self.server.pods.values()), self.server.version, self.now)

    def settle(self, *, ready: bool = True) -> None:
        """Let everything happen that can happen without time passing."""
        for _ in range(100):
            self.send()
            if not self.sent and not self.server.events:
                return
            for action in list(self.sent):
                self.arrive(action)
            if ready:
                for name in [name for name, pod in self.server.pods.items() if not pod.is_ready]:
                    self.server.make_ready(name)
            self.tell(len(self.server.events))
        raise AssertionError("never at rest")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, second by second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.pool.tick(self.now, self.now)

    def _carry_out(self, action: Action) -> Callable[[], None]:
        pool, server, now = self.pool, self.server, self.now
        match action:
            case Create(name=name):
                made = server.create(name)
                if made == "quota":
                    full = Failure(FailureKind.QUOTA, "exceeded quota: pods")
                    return lambda: pool.supply.refused(name, full, now)
                found = server.pods.get(name)
                return lambda: pool.supply.created(name, found.version if found else None)
            case Bind(pod=pod, trial=trial):
                bound = server.bind(action)
                if bound is None:
                    return lambda: pool.bindings.refused(pod.name, trial, now)
                return lambda: pool.bindings.bound(pod.name, trial, bound.version, now, now)
            case Look(name=name, trial=trial):
                seen = server.pods.get(name)
                return lambda: pool.bindings.looked(name, trial, seen, now, now)
            case Delete():
                server.delete(action)
                return lambda: None
            case _:
                assert_never(action)

    def _unknown(self, action: Action) -> None:
        match action:
            case Create():
                self.pool.supply.unknown(action.name)
            case Bind():
                self.pool.bindings.unknown(action)
            case Look() | Delete():
                self.pool.unknown(action)
            case _:
                assert_never(action)
