"""The sandboxes of one world in one namespace: which are made, handed out and deleted."""

from collections.abc import Callable, Sequence

from seatrial_operator.sandboxes.core.actions import Action, Delete, Look
from seatrial_operator.sandboxes.core.bindings import Bindings
from seatrial_operator.sandboxes.core.claims import Claim, Claims, ClaimState
from seatrial_operator.sandboxes.core.demand import Bounds, Prefetches
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.health import Health
from seatrial_operator.sandboxes.core.ledger import Ledger, Tally, deleted
from seatrial_operator.sandboxes.core.patience import Patience
from seatrial_operator.sandboxes.core.pods import SandboxPod
from seatrial_operator.sandboxes.core.stock import Shelf, Stock
from seatrial_operator.sandboxes.core.supply import Supply


class Pool:
    """Decides; whoever owns it carries `actions` out and tells how each went.

        watch ── observe, gone, reset ──▶ ┌───────────────────────────┐ ── actions ──▶ API server
        callers ─ claim, renew, release ─▶│ supply  ledger   bindings │ ◀─ answers ───
        time ── tick ────────────────────▶└───────────────────────────┘ ── settled ──▶ callers

    `supply` makes and removes pods, `bindings` gives them to claims, and takes the answers to what each of them had
    sent; `ledger` is what both know.
    """

    def __init__(self, world: str, new_name: Callable[[], str], patience: Patience | None = None) -> None:
        """Of a world, with nothing known yet.

        Args:
            world: Its name.
            new_name: A name that no pod had before.
            patience: How long things are waited for.
        """
        self.world = world
        self.patience = patience or Patience()
        self.health = Health(self.patience)
        self.prefetches = Prefetches(self.patience.prefetch)
        self.ledger = Ledger(Claims(self.patience.lease))
        self.bindings = Bindings(self.ledger)
        self.supply = Supply(new_name, self.ledger, self.health, self.patience, self.prefetches)

    @property
    def claims(self) -> Claims:
        """All claims."""
        return self.ledger.claims

    @property
    def stock(self) -> Stock:
        """All pods."""
        return self.ledger.stock

    @property
    def tally(self) -> Tally:
        """What happened so far."""
        return self.ledger.tally

    @property
    def num_warm(self) -> int:
        """Sandboxes that can be handed out now."""
        return self.stock.count(Shelf.WARM)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to be remembered: no pod, no claim, nothing on its way."""
        return self.stock.is_empty and self.claims.is_empty

    def problem(self) -> Failure | None:
        """What keeps sandboxes from being made, if something does."""
        held_up = (pod.hold_up for pod in self.stock.on(Shelf.STARTING) if pod.hold_up)
        return self.health.problem or next(held_up, None)

    def become(self, bounds: Bounds, revision: str, failure: Failure | None) -> None:
        """What the world and its RolloutPools ask for from now on.

        Args:
            bounds: How many sandboxes.
            revision: Of which form of the world; if empty, that is not known, and what there is stays.
            failure: Why none can be made.
        """
        self.supply.bounds, self.health.world_failure = bounds, failure
        if revision:
            self.stock.set_revision(revision)

    # --- callers

    def claim(self, trial: str, run: str, deadline: float, now: float, replaces: str = "") -> Claim:
        """Ask for a sandbox; answered by what `drain_settled` brings, or at once if the trial holds one."""
        known = self.claims.get(trial)
        if known is not None and known.state is ClaimState.HELD:
            if known.pod != replaces:
                known.until = now + self.patience.lease
                return known
            self.ledger.take_back(known)
        claim = self.claims.ask(trial, run, deadline, now)
        claim.is_given_back = False
        if known is not claim:
            self.prefetches.use(run)
        return claim

    def withdraw(self, trial: str) -> None:
        """Nobody waits for the claim's answer any more."""
        claim = self.claims.get(trial)
        if claim is not None and claim.state is ClaimState.WAITING:
            self.claims.end(claim)

    def renew(self, trial: str, now: float) -> Claim | None:
        """Keep a trial's sandbox for another period; its claim, none if it has none."""
        claim = self.claims.get(trial)
        if claim is not None and claim.state is ClaimState.HELD:
            claim.until = now + self.patience.lease
        return claim

    def release(self, trial: str, sandbox: str = "") -> None:
        """A trial needs its sandbox no more; if `sandbox` is given, only that one."""
        claim = self.claims.get(trial)
        if claim is None or (sandbox and claim.pod != sandbox):
            return
        if claim.state is ClaimState.BINDING:
            claim.is_given_back = True
        else:
            self.ledger.take_back(claim)

    # --- the watch

    def observe(self, pod: SandboxPod, now: float) -> None:
        """What the API server says of a pod."""
        shelf = self.stock.observe(pod)
        if shelf is None:
            return
        self.supply.observe(pod, shelf, now)
        if pod.trial:
            self.bindings.observe(pod, shelf, now)

    def gone(self, pod: SandboxPod, now: float) -> None:
        """A pod is gone, as of the version of `pod`."""
        self._forget(pod.name, pod.version, pod.failure, now)

    def reset(self, pods: Sequence[SandboxPod], version: int, now: float) -> None:
        """All pods that there are, as of a version."""
        for name in self.stock.missing_from((pod.name for pod in pods), version):
            self._forget(name, version, None, now)
        for pod in pods:
            self.observe(pod, now)

    # --- requests

    def actions(self, now: float) -> list[Action]:
        """What is to be sent now; each action is handed out once and answered once."""
        self.bindings.match()
        self.supply.plan(now)
        return self.ledger.take_outbox()

    def unknown(self, action: Look | Delete) -> None:
        """No answer came to a request that may be sent any number of times."""
        self.ledger.send(Delete(action.name, action.uid, again=True) if isinstance(action, Delete) else action)

    # --- time

    def tick(self, now: float, wall: float) -> None:
        """Let time have its effects; about once a second.

        Args:
            now: On the monotonic clock, as all other calls have it.
            wall: In s since the epoch, as pods have it.
        """
        for claim in self.claims.overdue(now):
            self.ledger.lose(claim, self._why_late(claim), now)
        for claim in self.claims.to_look_at(now):
            self._look_at_hold(claim, now, wall)
        self.claims.forget_lost(now)
        self.supply.tick(now, wall)
        self.health.look_at_world(now)
        if not self.num_warm and (failure := self.health.hopeless(now)) is not None:
            for claim in self.claims.in_state(ClaimState.WAITING):
                self.ledger.lose(claim, failure, now)

    def _look_at_hold(self, claim: Claim, now: float, wall: float) -> None:
        """End a trial's hold of its sandbox if its time is over, else say when to look again."""
        pod, lifetime = self.stock.get(claim.pod), self.supply.bounds.lifetime_seconds
        left = pod.claimed_at + lifetime - wall if pod else lifetime
        if claim.until <= now:
            told = f"the lease of trial {claim.trial} ran out after {self.patience.lease:.0f} s without a renewal"
            self.ledger.lose(claim, Failure(FailureKind.LEASE, told), now)
        elif left <= 0:
            told = f"trial {claim.trial} held {claim.pod} for lifetimeSeconds {lifetime:.0f}"
            self.ledger.lose(claim, Failure(FailureKind.LIFETIME, told), now)
        else:
            self.claims.look_again(claim, min(claim.until, now + left))

    def _why_late(self, claim: Claim) -> Failure:
        problem = self.problem()
        waited = f"trial {claim.trial} waited {claim.deadline - claim.asked_at:.1f} s for a sandbox of {self.world}"
        if problem is not None:
            return Failure(problem.kind, f"{waited}: {problem.message}")
        return Failure(
            FailureKind.DEADLINE, f"{waited}, all of which are in use; raise the pool's ceiling, or run fewer trials"
        )

    def _forget(self, name: str, version: int, failure: Failure | None, now: float) -> None:
        pod = self.stock.forget(name, version)
        self.supply.forget(name, now)
        claim = self.claims.get(pod.trial) if pod and pod.trial else None
        if pod and claim and claim.state is ClaimState.HELD and claim.pod == name:
            self.ledger.lose(claim, failure or pod.failure or deleted(name), now)
