"""Two selections of trajectories side by side: what changed in results, outcomes, behaviour and tools."""

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial_api.stage_report import Estimate
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.evaluation.statistics import estimate_gain
from seatrial_trainer.evaluation.summary import behaviour, results_by_task
from seatrial_trainer.reporting.failures import summarize_outcomes, summarize_tools
from seatrial_trainer.reporting.symptoms import Suspicion, find_symptoms


@dataclass(frozen=True, slots=True)
class Change:
    """One figure on both sides."""

    name: str
    before: float | None
    """None where that side has nothing of the kind."""
    after: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two selections."""

    gain: Estimate | None
    """Change in pass@1 over the tasks that both sides tried, paired and clustered by task; none if they share none."""
    behaviour: Sequence[Change]
    """Mean turns, tokens per turn, tool calls and their success."""
    outcomes: Sequence[Change]
    """Share of trials by outcome, 0 to 1."""
    tools: Sequence[Change]
    """Share of calls that failed by tool, 0 to 1; the largest change first."""
    appeared: Sequence[Suspicion]
    """What looks broken now and did not before."""
    gone: Sequence[Suspicion]
    """What looked broken before and does not now."""


def compare(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> Comparison:
    """Hold two selections against each other."""
    results_before, results_after = results_by_task(before), results_by_task(after)
    has_shared = bool(results_before.keys() & results_after.keys())
    suspected_before, suspected_after = find_symptoms(before), find_symptoms(after)
    return Comparison(
        gain=estimate_gain(results_before, results_after) if has_shared else None,
        behaviour=_changes(behaviour(before) if before else {}, behaviour(after) if after else {}),
        outcomes=_changes(_outcome_shares(before), _outcome_shares(after)),
        tools=sorted(_changes(_error_rates(before), _error_rates(after)), key=_by_size),
        appeared=_without(suspected_after, suspected_before),
        gone=_without(suspected_before, suspected_after),
    )


def _changes(before: dict[str, float], after: dict[str, float]) -> list[Change]:
    return [Change(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]


def _outcome_shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    return {one.outcome: one.count / len(trajectories) for one in summarize_outcomes(trajectories)}


def _error_rates(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    return {one.name: one.error_rate for one in summarize_tools(trajectories)}


def _by_size(change: Change) -> float:
    return -abs((change.after or 0.0) - (change.before or 0.0))


def _without(these: Sequence[Suspicion], those: Sequence[Suspicion]) -> list[Suspicion]:
    known = {(one.symptom, one.tool) for one in those}
    return [one for one in these if (one.symptom, one.tool) not in known]
