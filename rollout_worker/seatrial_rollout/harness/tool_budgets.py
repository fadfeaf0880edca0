"""What each tool of a trial may still do. No I/O."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from seatrial_api.spec.harness import ToolBudget


@dataclass(slots=True)
class ToolBudgets:
    """The budgets of one trial's tools, by the names that the model knows them by."""

    budgets: Sequence[ToolBudget] = ()
    _num_calls: Counter[str] = field(default_factory=Counter, init=False)

    def seconds(self, name: str) -> float | None:
        """Time of one call of a tool; none if it has no limit of its own."""
        budget = self._of(name)
        return None if budget is None else budget.timeout_seconds

    def calls_left(self, name: str) -> int | None:
        """Calls that a tool still has; none if it has no limit."""
        budget = self._of(name)
        return None if budget is None or budget.max_calls is None else budget.max_calls - self._num_calls[name]

    def spend(self, name: str) -> None:
        """Count a call."""
        self._num_calls[name] += 1

    def refusal(self, name: str, names: Iterable[str]) -> str:
        """What a model is told that calls a tool once too often; empty if the tool has calls left.

        Args:
            name: The tool.
            names: All tools of the trial.
        """
        if self.calls_left(name) != 0:
            return ""
        left = {other: self.calls_left(other) for other in names}
        counted = [f"{other} ({num} more)" for other, num in left.items() if num]
        num_free = sum(num is None for num in left.values())
        free = [f"{num_free} {'tool' if num_free == 1 else 'tools'} without a limit"] if num_free else []
        spent = f"{name} was not called: the budget of {self._num_calls[name]} calls is spent"
        return f"{spent}. Left: {', '.join([*counted, *free]) or 'no tool; give your final answer'}"

    def _of(self, name: str) -> ToolBudget | None:
        return next((budget for budget in self.budgets if fnmatchcase(name, budget.tool)), None)
