"""What can go wrong with a verdict, by what the caller does next.

JudgeError
├── NoVerdictError     nobody answered in time; try the trial again
├── OverBudgetError    the trial or the run may ask no more; raise its budget
├── RefusedError       the provider finds fault with the question; correct it
└── NotAllowedError    no valid token of this run's phase Verify; get one
"""

from typing import ClassVar

from seatrial_api.errors import SeatrialError, TransientError
from seatrial_api.outcome import Outcome


class JudgeError(SeatrialError):
    """Root of the tree; ends a trial without blame for the model."""

    outcome: ClassVar[Outcome] = Outcome.JUDGE_FAILED
    status: ClassVar[int] = 500
    """HTTP status by which the gateway tells it."""


class NoVerdictError(JudgeError, TransientError):
    """Nobody answered in time, after every retry."""

    status = 503


class OverBudgetError(JudgeError):
    """What is left of a budget does not suffice."""

    status = 402

    def __init__(self, *, scope: str, kind: str, used: float, bound: float) -> None:
        self.scope = scope
        super().__init__(f"the {scope} has used {used:g} of {bound:g} {kind}; raise judge.{scope}Budget.{kind}")


class RefusedError(JudgeError):
    """The provider finds fault with the question itself; asking again does not help."""

    def __init__(self, *, status: int, body: str) -> None:
        self.provider_status = status
        self.body = body
        super().__init__(f"the judge refused the question with status {status}: {body[:500]}")


class NotAllowedError(JudgeError):
    """No valid token."""

    status = 401
