"""What is known of one world's pods and claims, what is to be sent, and the moves that change more than one."""

from dataclasses import dataclass, field

from seatrial_operator.sandboxes.core.actions import Action, Delete
from seatrial_operator.sandboxes.core.claims import Claim, Claims, ClaimState
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.stock import Shelf, Stock


@dataclass
class Tally:
    """What happened since the broker began."""

    created: int = 0
    served: int = 0
    failed: int = 0
    failed_by_run: dict[str, int] = field(default_factory=dict)

    def add_failure(self, run: str = "") -> None:
        """A sandbox failed; a trial's of this run, if one held it."""
        self.failed += 1
        if run:
            self.failed_by_run[run] = self.failed_by_run.get(run, 0) + 1


@dataclass
class Ledger:
    """Pods and claims, kept in step: a sandbox that a claim gives up, however, is deleted and serves nobody else."""

    claims: Claims
    stock: Stock = field(default_factory=Stock)
    tally: Tally = field(default_factory=Tally)
    _outbox: list[Action] = field(default_factory=list)

    def send(self, action: Action) -> None:
        """Have a request sent."""
        self._outbox.append(action)

    def take_outbox(self) -> list[Action]:
        """What is to be sent; from now on it is on its way."""
        actions, self._outbox = self._outbox, []
        return actions

    def delete(self, name: str) -> None:
        """Delete a pod, once."""
        pod = self.stock.get(name)
        if pod is not None and self.stock.shelf(name) is not Shelf.GOING:
            self.stock.delete(name)
            self.send(Delete(name, pod.uid))

    def lose(self, claim: Claim, failure: Failure, now: float) -> None:
        """There is no sandbox for a claim, or no longer one."""
        if claim.state is ClaimState.HELD:
            self.tally.add_failure(claim.run)
            self.delete(claim.pod)
        self.claims.lose(claim, failure, now)

    def take_back(self, claim: Claim) -> None:
        """A trial needs its sandbox no more; not for claims that are being bound."""
        if claim.state is ClaimState.HELD:
            self.delete(claim.pod)
        elif claim.state is ClaimState.WAITING:
            told = f"trial {claim.trial} gave its claim back"
            self.claims.lose(claim, Failure(FailureKind.DELETED, told), claim.until)
        self.claims.end(claim)


def deleted(name: str) -> Failure:
    """What is said of a pod that went away without a word."""
    return Failure(FailureKind.DELETED, f"pod {name} was deleted, and not by the broker")
