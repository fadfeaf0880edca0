"""Results of Evaluate stages, arranged for a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seatrial_api.spec.operations import CostSpec
from seatrial_api.stage_report import EvaluationResult, StageReport
from seatrial_trainer.reporting.token_costs import TokenLine


@dataclass(frozen=True, slots=True)
class Line:
    """One task set under one sampling and one harness, with the result of every stage that measured it."""

    name: str
    harness: str
    results: dict[str, EvaluationResult]
    """By stage, oldest first."""

    @property
    def before(self) -> EvaluationResult:
        """The first result."""
        return next(iter(self.results.values()))

    @property
    def after(self) -> EvaluationResult:
        """The last one."""
        return list(self.results.values())[-1]


def lines(reports: Sequence[StageReport]) -> list[Line]:
    """A line per task set, sampling and harness, harnesses of one task set side by side."""
    evaluated = [report for report in reports if report.evaluations]
    labels = dict.fromkeys((result.name, result.harness) for report in evaluated for result in report.evaluations)
    names = list(dict.fromkeys(name for name, _ in labels))
    ordered = sorted(labels, key=lambda label: names.index(label[0]))
    return [Line(name, harness, dict(_results(evaluated, name, harness))) for name, harness in ordered]


def transfer(measured: Sequence[Line], trained_with: str) -> list[Line]:
    """What training with one harness did under that one and under others; nothing where only one was measured."""
    twice = [line for line in measured if len(line.results) > 1]
    names = {line.name for line in twice if line.harness != trained_with}
    return [line for line in twice if line.name in names]


def costs(line: Line, prices: CostSpec) -> list[TokenLine]:
    """What each stage's trials of a line cost, oldest first; those left out whose tokens were not counted."""
    return [TokenLine(stage, result.tokens, prices) for stage, result in line.results.items() if result.tokens]


def _results(reports: Sequence[StageReport], name: str, harness: str) -> Iterator[tuple[str, EvaluationResult]]:
    for report in reports:
        for result in report.evaluations:
            if (result.name, result.harness) == (name, harness):
                yield report.stage, result
