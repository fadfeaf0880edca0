"""What has been used up, and what may still be: pure bookkeeping."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from seatrial_api.spec.judge import JudgeBudget, JudgeModel
from seatrial_rollout.judge.errors import OverBudgetError


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used up, or is expected to be."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def priced(cls, model: JudgeModel, prompt_tokens: int, completion_tokens: int) -> "Usage":
        """One request to a model."""
        dollars = prompt_tokens * model.prompt_million_tokens + completion_tokens * model.completion_million_tokens
        return cls(1, prompt_tokens, completion_tokens, dollars / 1e6)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.dollars + other.dollars,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return self + Usage(-other.requests, -other.prompt_tokens, -other.completion_tokens, -other.dollars)


NOTHING = Usage()


@dataclass(slots=True)
class Account:
    """What one verification, or the run, has used up and has under way."""

    used: Usage = NOTHING
    reserved: Usage = NOTHING

    def check(self, scope: str, budget: JudgeBudget, expected: Usage) -> None:
        """Let a request pass that fits.

        Raises:
            OverBudgetError: if the budget may not bear it.
        """
        taken = self.used + self.reserved
        wanted = taken + expected
        for kind in ("requests", "tokens", "dollars"):
            bound: float | None = getattr(budget, kind)
            if bound is not None and getattr(wanted, kind) > bound:
                raise OverBudgetError(scope=scope, kind=kind, used=getattr(taken, kind), bound=bound)


@dataclass(slots=True)
class Reservation:
    """A request under way; nothing is used up unless its usage is set."""

    usage: Usage = NOTHING


@dataclass(slots=True)
class Ledger:
    """Accounts of the run and of each verification of a trial.

    A request is counted as expected while it is under way, so that many at once cannot overdraw together.
    """

    run_budget: JudgeBudget
    run: Account = field(default_factory=Account)
    verifications: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))

    @contextmanager
    def reserved(self, verification: str, budget: JudgeBudget, expected: Usage) -> Iterator[Reservation]:
        """Hold what a request is expected to use while the block runs; then count what it has used.

        Raises:
            OverBudgetError: if the trial's or the run's budget may not bear it.
        """
        accounts = self.verifications[verification], self.run
        accounts[0].check("trial", budget, expected)
        accounts[1].check("run", self.run_budget, expected)
        for account in accounts:
            account.reserved += expected
        reservation = Reservation()
        try:
            yield reservation
        finally:
            for account in accounts:
                account.reserved -= expected
                account.used += reservation.usage
