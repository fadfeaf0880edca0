"""A plan in the making: the status so far, the actions so far, and when to look again."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from seatrial_api.conditions import Condition, RunCondition
from seatrial_api.status import RLRunStatus
from seatrial_operator.plan.actions import Action
from seatrial_operator.plan.observed import Situation

_MESSAGE_CHARS = 1024


@dataclass
class Draft:
    """Lives within one call of `plan`."""

    situation: Situation
    status: RLRunStatus
    actions: list[Action] = field(default_factory=list)
    removals: list[Action] = field(default_factory=list)
    _looks: list[float] = field(default_factory=list)

    def update(self, **fields: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def update_current(self, **fields: Any) -> None:
        """Change fields of the current attempt."""
        if self.status.current is not None:
            self.update(current=self.status.current.model_copy(update=fields))

    def state(
        self, kind: RunCondition, status: Literal["True", "False", "Unknown"], reason: str, message: str = ""
    ) -> None:
        """State a condition. The time of its last transition stays while its status does."""
        former = self.find(kind)
        is_same = former is not None and former.status == status
        condition = Condition(
            type=kind.value,
            status=status,
            reason=reason,
            message=message[:_MESSAGE_CHARS],
            last_transition_time=former.last_transition_time if former and is_same else self.situation.now,
            observed_generation=self.situation.run.generation,
        )
        others = [other for other in self.status.conditions if other.type != kind.value]
        self.update(conditions=sorted([*others, condition], key=lambda one: _ORDER.index(one.type)))

    def drop(self, *kinds: RunCondition) -> None:
        """State nothing of these kinds any more."""
        self.update(conditions=[one for one in self.status.conditions if one.type not in kinds])

    def find(self, kind: RunCondition) -> Condition | None:
        """The condition of this kind."""
        return find(self.status, kind)

    def is_true(self, kind: RunCondition) -> bool:
        """Whether the condition of this kind is stated and true."""
        return is_true(self.status, kind)

    def look_at(self, moment: datetime) -> None:
        """Look again at this time."""
        self.look_after((moment - self.situation.now).total_seconds())

    def look_after(self, seconds: float) -> None:
        """Look again after this time."""
        self._looks.append(max(0.0, seconds))

    @property
    def next_look_seconds(self) -> float:
        """The earliest look that was asked for, or the resync."""
        return min(self._looks, default=self.situation.timing.resync_seconds)

    def has_passed(self, since: datetime, seconds: float) -> bool:
        """Whether `seconds` have passed since; if not, there will be a look when they have."""
        end = since + timedelta(seconds=seconds)
        if self.situation.now >= end:
            return True
        self.look_at(end)
        return False


_ORDER = [kind.value for kind in RunCondition]


def find(status: RLRunStatus, kind: RunCondition) -> Condition | None:
    """The condition of this kind."""
    return next((one for one in status.conditions if one.type == kind.value), None)


def is_true(status: RLRunStatus, kind: RunCondition) -> bool:
    """Whether the condition of this kind is stated and true."""
    condition = find(status, kind)
    return condition is not None and condition.status == "True"
