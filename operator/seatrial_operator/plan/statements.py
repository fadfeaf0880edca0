"""Conditions from statements: the time of a transition is kept for as long as the status stays the same."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from seatrial_api.conditions import Condition
from seatrial_operator.plan.actions import Story

_READY = "Ready"
"""Sums the others up, on every kind."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a condition says, without its history."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""

    @property
    def is_true(self) -> bool:
        """Whether it is so."""
        return self.status == "True"


def conditions(
    statements: Iterable[Statement], former: Iterable[Condition], now: datetime, generation: int
) -> list[Condition]:
    """The conditions that say so; those of types without a statement are gone."""
    since = {(one.type, one.status): one.last_transition_time for one in former}
    return [
        Condition(
            type=one.type,
            status=one.status,
            reason=one.reason,
            message=one.message,
            last_transition_time=since.get((one.type, one.status), now),
            observed_generation=generation,
        )
        for one in statements
    ]


def readiness(statements: Iterable[Statement], message: str) -> Statement:
    """`Ready`: true if all statements are; else the type of the first that is not is the reason, with its message."""
    for one in statements:
        if not one.is_true:
            return Statement(_READY, "False", one.type, one.message)
    return Statement(_READY, "True", "Ready", message)


def stories(former: Iterable[Condition], now: Iterable[Condition], quiet: Collection[str]) -> list[Story]:
    """Events for conditions whose status or reason changed.

    Args:
        former: Conditions before.
        now: Conditions now.
        quiet: Reasons that are no news: something is simply under way.
    """
    known = {(one.type, one.status, one.reason) for one in former}
    return [
        Story("Normal" if one.status == "True" else "Warning", one.reason, one.message)
        for one in now
        if (one.type, one.status, one.reason) not in known and one.reason not in quiet and one.type != _READY
    ]
