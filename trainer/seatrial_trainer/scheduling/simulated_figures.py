"""What a simulated run says about a setting: how busy engines and trainer were, how old groups were, what waited."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from seatrial_trainer.scheduling.groups import FinishedGroup
from seatrial_trainer.scheduling.simulator import SimulationResult, SimulationSpec


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """Figures of a whole run, its start included; shares are of its time."""

    step_seconds: float
    """Time of a step, all waits included."""
    trials_per_second: float
    """Trials that ended, retries included."""
    engines_used: float
    """Share of the engines' seats that were taken."""
    trainer_used: float
    """Share of the time in which a step trained."""
    waited: float
    """Share in which the trainer waited for a batch."""
    held: float
    """Part of `waited` in which enough groups were finished and a step waited for those that were due."""
    staleness: dict[int, float]
    """Share of the trained groups by steps between admission and training."""
    preemptions_per_trial: float
    """How often an engine with a full cache threw a request out."""
    failed: float
    """Share of the trials that infrastructure ended."""
    reward_by_step: tuple[float, ...]
    """Mean reward of the batch of each step, as a run's own curve shows it."""
    reward_by_cohort: tuple[float, ...]
    """Mean reward of the groups that were admitted at each version, whenever they were trained."""

    @property
    def mean_staleness(self) -> float:
        """Steps between admission and training."""
        return sum(steps * share for steps, share in self.staleness.items())


def figures_of(result: SimulationResult, spec: SimulationSpec) -> SimulatedFigures:
    """The figures of a run that came to its end.

    Raises:
        ValueError: if it did not.
    """
    snapshot = result.snapshot
    if snapshot is None:
        raise ValueError("the simulated run crashed before its end")
    num_trained = sum(snapshot.staleness.values())
    num_trials = snapshot.outcomes.values()
    cohorts: dict[int, list[FinishedGroup]] = defaultdict(list)
    for batch in result.batches:
        for group in batch.groups:
            cohorts[group.credit.start_version].append(group)
    seats = spec.engines.num_engines * spec.engines.seats
    return SimulatedFigures(
        step_seconds=result.seconds / len(result.batches),
        trials_per_second=sum(num_trials) / result.seconds,
        engines_used=result.seat_seconds / (seats * result.seconds),
        trainer_used=sum(stop - start for start, stop in result.train_spans) / result.seconds,
        waited=snapshot.buffer_wait_seconds / result.seconds,
        held=snapshot.staleness_hold_seconds / result.seconds,
        staleness={steps: groups / num_trained for steps, groups in sorted(snapshot.staleness.items())},
        preemptions_per_trial=result.num_preemptions / sum(num_trials),
        failed=sum(n for outcome, n in snapshot.outcomes.items() if outcome.is_infrastructure) / sum(num_trials),
        reward_by_step=tuple(_mean_reward(batch.groups) for batch in result.batches),
        reward_by_cohort=tuple(_mean_reward(cohorts[version]) for version in sorted(cohorts)),
    )


def _mean_reward(groups: Iterable[FinishedGroup]) -> float:
    return fmean(one.reward or 0.0 for group in groups for one in group.trajectories)
