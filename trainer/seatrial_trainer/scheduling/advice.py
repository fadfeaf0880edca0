"""Which concurrency a run needs, tried on the real scheduler in virtual time before a GPU is paid for.

What is simulated is a guess where the run has not been seen yet: lengths and durations after `assumed_shape`, engines
that nothing but their seats slows down. So it answers in ratios, what one setting loses against another, and those
come from staleness, batch and the spread of lengths, which the manifest decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from seatrial_api.ceilings import algorithmic_ceiling
from seatrial_api.demand import assumed_shape
from seatrial_api.rlrun import RLRunSpec
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.scheduler import SchedulerSettings
from seatrial_trainer.scheduling.simulated_engines import EngineModel
from seatrial_trainer.scheduling.simulated_figures import SimulatedFigures, figures_of
from seatrial_trainer.scheduling.simulator import SimulationSpec, simulate
from seatrial_trainer.scheduling.workload import Workload

TOLERANCE = 0.05
"""A step may take so much longer than the fastest found: more trials in flight cost memory and sandboxes."""
_MAX_TRIALS = 2_048
"""Trials of one simulated run at most, if that leaves it long enough to say something."""
_WORKLOAD = Workload(tokens_per_turn=2_200, max_turns=25, median_tool_seconds=6.0)
"""The published one in turns of four, which changes no total and is four times as quick to simulate."""
_TRAIN_SHARE = 0.25
"""A step's training as a share of a trial's duration, where nothing is known of it: the published recipe's 100 s of
400 s."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the simulation found."""

    concurrency: int
    """The fewest trials in flight that keep a step within `TOLERANCE` of the fastest."""
    by_concurrency: Mapping[int, SimulatedFigures]
    """Figures of each concurrency that was tried, ascending."""
    seconds: float
    """Wall time that a trial was taken to last, on average."""

    def slowdown(self, concurrency: int) -> float:
        """How much longer a step takes at a concurrency that was tried than at the fastest: 0.1 is a tenth."""
        fastest = min(figures.step_seconds for figures in self.by_concurrency.values())
        return self.by_concurrency[concurrency].step_seconds / fastest - 1

    def describe(self) -> str:
        """One sentence for a person."""
        figures = self.by_concurrency[self.concurrency]
        return (
            f"{self.concurrency} trials in flight train within {TOLERANCE:.0%} of the fastest: groups are "
            f"{figures.mean_staleness:.1f} steps old, a step waits for due ones {figures.held:.0%} of the time "
            f"(simulated trials of {self.seconds:.0f} s on average)"
        )


def advise(spec: RLRunSpec, *, highest: int | None = None, train_seconds: float | None = None) -> Advice:
    """Try concurrencies up to the highest; some seconds of CPU for a large run.

    Args:
        spec: The run.
        highest: Trials that engines and trial hosts bear at most; the algorithmic ceiling if that is lower or none is
            known.
        train_seconds: Policy step and weight sync, if known.
    """
    algorithm, asked = spec.algorithm, spec.async_.concurrency
    ceiling = algorithmic_ceiling(spec.async_.max_staleness_steps, algorithm.batch_size, algorithm.group_size)
    top = min(ceiling, highest or ceiling)
    found = {top: _figures(spec, top, train_seconds)}
    bound = found[top].step_seconds * (1 + TOLERANCE)
    enough = top
    while enough > 1 and found[enough].step_seconds <= bound:  # halve while that costs nothing, then meet half-way
        enough //= 2
        found[enough] = _figures(spec, enough, train_seconds)
    between = min(top, enough + enough // 2)
    others = {between, min(asked, top) if isinstance(asked, int) else top}
    found |= {concurrency: _figures(spec, concurrency, train_seconds) for concurrency in others - found.keys()}
    best = min(concurrency for concurrency, figures in found.items() if figures.step_seconds <= bound)
    return Advice(best, dict(sorted(found.items())), assumed_shape(spec).seconds)


def _figures(spec: RLRunSpec, concurrency: int, train_seconds: float | None) -> SimulatedFigures:
    algorithm, shape = spec.algorithm, assumed_shape(spec)
    workload = replace(_WORKLOAD, seed=algorithm.seed).resized(
        mean_seconds=shape.seconds, mean_tokens=shape.tokens, max_tokens=spec.model.context_length.train
    )
    engines = spec.rollout.engines
    staleness = spec.async_.max_staleness_steps
    num_steps = max(staleness + 4, min(16, _MAX_TRIALS // (algorithm.batch_size * algorithm.group_size)))
    simulation = SimulationSpec(
        SchedulerSettings(
            purpose="advice",
            rules=AssemblyRules(algorithm.group_size, algorithm.min_valid_trials or (algorithm.group_size + 1) // 2),
            batch_size=algorithm.batch_size,
            max_staleness=staleness,
            num_steps=num_steps,
        ),
        num_tasks=1_000,
        concurrency=concurrency,
        engines=EngineModel(
            num_engines=engines.replicas,
            seats=engines.max_num_seqs,
            tokens_per_second=workload.tokens_per_second,
            kv_capacity=1 << 40,
        ),
        workload=workload,
        train_seconds=shape.seconds * _TRAIN_SHARE if train_seconds is None else train_seconds,
        wait_seconds=1_000 * shape.seconds,
        trial_timeout_seconds=1_000 * shape.seconds,
    )
    return figures_of(simulate(simulation), simulation)
