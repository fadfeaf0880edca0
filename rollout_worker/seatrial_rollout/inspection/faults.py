"""What an inspection can find, and what it says about it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What is wrong, the gravest first."""

    SOLUTION_FAILS = "SolutionFails"
    """The task's own solution does not score 1: nobody can learn it."""
    IDLE_PASSES = "IdlePasses"
    """Doing nothing scores above 0: everybody is told that it was right."""
    FLAKY = "Flaky"
    """The same work is graded differently from one time to the next."""
    TAMPERED = "Tampered"
    """An agent that does none of the work gets a reward, or keeps its trial from being graded."""
    LEAKED = "Leaked"
    """The solution, or what the verifier compares with, can be read in the world or the instruction."""
    CONTAMINATED = "Contaminated"
    """The instruction shares a long run of words with a text that it must not have come from."""
    TOOL = "Tool"
    """A tool does not say what it takes, or answers bad input with anything but an error that teaches."""
    UNTRIED = "Untried"
    """Infrastructure failed, so nothing is known."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding."""

    kind: FaultKind
    task: str
    detail: str
    """What was seen, for a person who has to mend it."""


@dataclass(frozen=True, slots=True)
class InspectionReport:
    """What an inspection found."""

    world: str
    tasks: int
    trials: int
    seconds: float
    faults: Sequence[Fault]

    def count(self, kind: FaultKind) -> int:
        """Tasks with a fault of this kind."""
        return len({fault.task for fault in self.faults if fault.kind is kind})

    def passes(self, max_flakiness: float) -> bool:
        """Whether the world may be trained in.

        Args:
            max_flakiness: Share of tasks, 0 to 1, that may be flaky.
        """
        others = any(fault.kind is not FaultKind.FLAKY for fault in self.faults)
        return not others and self.count(FaultKind.FLAKY) <= max_flakiness * self.tasks

    def text(self) -> str:
        """The report as Markdown, for a person."""
        counts = Counter(fault.kind for fault in self.faults)
        lines = [
            f"# Inspection of world {self.world}",
            "",
            f"{self.tasks} tasks, {self.trials} trials, {self.seconds:.0f} s.",
            "",
            *([] if self.faults else ["Nothing was found."]),
        ]
        for kind in FaultKind:
            if counts[kind]:
                lines += [f"## {kind}: {self.count(kind)} of {self.tasks} tasks", ""]
                lines += [f"- **{fault.task}**: {fault.detail}" for fault in self.faults if fault.kind is kind]
                lines.append("")
        return "\n".join(lines).rstrip() + "\n"
