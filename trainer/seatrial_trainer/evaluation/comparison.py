"""Variants of a run held against the first of them, over the same tasks."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from seatrial_api.stage_report import ArmResult, Spread, Verdict
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.evaluation.statistics import estimate_gain
from seatrial_trainer.evaluation.summary import passed

type Tries = Mapping[str, Sequence[float]]
"""What each graded try at a task gave, in order."""


def arm_stage_name(stage: str, arm: str) -> str:
    """Name that an arm's data is stored under; no stage of a manifest can have it."""
    return f"{stage}.{arm}"


def compare_arms(arms: Mapping[str, Sequence[Trajectory]]) -> list[ArmResult]:
    """A line for each arm, in their order; the first is what the others are held against.

    Two arms tie where the paired interval of their pass@1 holds zero: tasks are resampled, never tries, so that luck
    with the choice of tasks is not taken for a difference.

    Args:
        arms: Graded and failed tries by arm; the same tasks in each.
    """
    solved = {arm: _tries(tries, lambda one: float(passed(one))) for arm, tries in arms.items()}
    rewards = {arm: _tries(tries, lambda one: one.reward or 0.0) for arm, tries in arms.items()}
    first = next(iter(arms))
    return [_line(arm, first, solved, rewards) for arm in arms]


def conclusion(results: Sequence[ArmResult]) -> str:
    """One sentence for a person: who is better, who is worse, and which differences are noise."""
    first, *others = results
    told = [
        f"{_names(named)} {phrase} {first.name}"
        for verdict, phrase in (("Better", "better than"), ("Worse", "worse than"), ("Tie", "within noise of"))
        if (named := [one for one in others if one.verdict == verdict])
    ]
    return "; ".join(told)


def _line(arm: str, first: str, solved: Mapping[str, Tries], rewards: Mapping[str, Tries]) -> ArmResult:
    is_comparable = arm != first and solved[first].keys() & solved[arm].keys()
    gain = estimate_gain(solved[first], solved[arm]) if is_comparable else None
    verdict: Verdict = "Baseline" if arm == first else "Tie"
    if gain and (gain.low > 0 or gain.high < 0):
        verdict = "Better" if gain.low > 0 else "Worse"
    return ArmResult(
        name=arm,
        pass_at_1=_spread(solved[arm]),
        mean_reward=_spread(rewards[arm]),
        gain=gain,
        reward_gain=estimate_gain(rewards[first], rewards[arm]) if is_comparable else None,
        verdict=verdict,
    )


def _spread(tries: Tries) -> Spread:
    """Over passes: pass p holds the p-th graded try at each task that has one."""
    num_passes = max(map(len, tries.values()), default=0)
    means = [fmean(results[p] for results in tries.values() if p < len(results)) for p in range(num_passes)]
    return Spread(
        mean=fmean(means) if means else 0.0, std=stdev(means) if len(means) > 1 else 0.0, num_passes=num_passes
    )


def _tries(trajectories: Sequence[Trajectory], value: Callable[[Trajectory], float]) -> Tries:
    found: dict[str, list[float]] = defaultdict(list)
    for one in sorted(trajectories, key=lambda one: one.trial_id):
        if not one.outcome.is_infrastructure:
            found[one.task].append(value(one))
    return found


def _names(arms: Sequence[ArmResult]) -> str:
    names = [f"{arm.name} ({arm.gain.mean:+.1%})" if arm.gain else f"{arm.name} (not comparable)" for arm in arms]
    verb = "is" if len(names) == 1 else "are"
    return f"{' and '.join(names)} {verb}"
