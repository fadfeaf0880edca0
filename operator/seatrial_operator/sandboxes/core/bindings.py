"""Which pod becomes whose: one conditional write for each claim, and nothing guessed about it."""

from dataclasses import dataclass, field

from seatrial_operator.sandboxes.core.actions import Bind, Look
from seatrial_operator.sandboxes.core.claims import Claim, ClaimState
from seatrial_operator.sandboxes.core.ledger import Ledger, deleted
from seatrial_operator.sandboxes.core.pods import SandboxPod
from seatrial_operator.sandboxes.core.stock import Shelf


@dataclass
class Bindings:
    """Gives warm pods to waiting claims.

    An answer that does not tell ("unknown") is never guessed about: the very same request is sent again until the
    answer tells. That is safe because it names the version of the pod that it was decided on: sent twice, it is carried
    out once. So no pod ever gets a second trial, and no trial a second pod that it could use.
    """

    ledger: Ledger
    _retried: set[str] = field(default_factory=set)
    """Pods whose binding was sent more than once."""
    _strays: dict[str, None] = field(default_factory=dict)
    """Pods claimed by trials that are not known to hold them."""

    def match(self) -> None:
        """Hand the pods that have been warm longest to the claims whose turn it is."""
        claims, stock = self.ledger.claims, self.ledger.stock
        while claims.num_waiting and (pod := stock.first_warm()) is not None:
            claim = claims.next(pod.name)
            if claim is None:
                return
            stock.bind(pod.name)
            self.ledger.send(Bind(pod, claim.trial, claim.run))

    # --- answers

    def bound(self, name: str, trial: str, version: int, now: float, wall: float) -> None:
        """A pod is a trial's."""
        claims = self.ledger.claims
        self._retried.discard(name)
        claim = claims.get(trial)
        if claim is None or claim.state is not ClaimState.BINDING or claim.pod != name:
            raise RuntimeError(f"pod {name} was bound to {trial}, which was not asked for")
        pod = self.ledger.stock.bound(name, trial, claim.run, version, wall)
        if pod is None:
            claims.put_back(claim)
            return
        if claim.is_given_back:
            claims.put_back(claim)
            self.ledger.delete(name)
            return
        claims.hold(claim, name, now)
        self.ledger.tally.served += 1
        if pod.failure or pod.is_going:
            self.ledger.lose(claim, pod.failure or deleted(name), now)
        self._settle_strays(now)

    def refused(self, name: str, trial: str, now: float) -> None:
        """A pod is not as it was known. If the binding was sent before, that may have been its own doing."""
        if name in self._retried:
            self.ledger.send(Look(name, trial))
            return
        self.ledger.stock.not_bound(name)
        claim = self.ledger.claims.get(trial)
        if claim is not None and claim.state is ClaimState.BINDING:
            self.ledger.claims.put_back(claim)
        pod = self.ledger.stock.get(name)
        if pod is not None and pod.trial:
            self.observe(pod, self.ledger.stock.shelf(name), now)

    def unknown(self, action: Bind) -> None:
        """No answer told whether a pod is the trial's now."""
        self._retried.add(action.pod.name)
        self.ledger.send(Bind(action.pod, action.trial, action.run, again=True))

    def looked(self, name: str, trial: str, pod: SandboxPod | None, now: float, wall: float) -> None:
        """How a pod is whose binding was refused after it may have been carried out."""
        self._retried.discard(name)
        if pod is not None and pod.trial == trial:
            self.ledger.stock.observe(pod)
            self.bound(name, trial, pod.version, now, wall)
        else:
            self.refused(name, trial, now)

    # --- the watch

    def observe(self, pod: SandboxPod, shelf: Shelf, now: float) -> None:
        """What the API server says of a pod that is a trial's."""
        claim = self.ledger.claims.get(pod.trial)
        if claim is not None and claim.state is ClaimState.HELD and claim.pod == pod.name:
            if pod.failure or pod.is_going:
                self.ledger.lose(claim, pod.failure or deleted(pod.name), now)
        elif shelf is Shelf.CLAIMED:
            self._strays[pod.name] = None
            self._settle_strays(now)

    def _settle_strays(self, now: float) -> None:
        """Decide about pods that were claimed before this broker began, or by a request that was long on its way.

        The first sandbox of a trial that is found is the trial's. Another one cannot have been answered to anyone.
        """
        for name in list(self._strays):
            pod = self.ledger.stock.get(name)
            claim = self.ledger.claims.get(pod.trial) if pod else None
            if pod is None or pod.is_going or (claim and claim.pod == name and claim.state is ClaimState.HELD):
                del self._strays[name]
            elif claim is not None and claim.state is ClaimState.BINDING:
                continue  # decided when its answer is known
            else:
                del self._strays[name]
                self._decide_about(pod, claim, now)

    def _decide_about(self, pod: SandboxPod, claim: Claim | None, now: float) -> None:
        claims = self.ledger.claims
        if claim is not None and claim.state is not ClaimState.WAITING:
            self.ledger.delete(pod.name)
            return
        if claim is None:
            claim = claims.adopt(pod.trial, pod.run, pod.name, now)
        else:
            claims.hold(claim, pod.name, now)
        if pod.failure is not None:
            self.ledger.lose(claim, pod.failure, now)
