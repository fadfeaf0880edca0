"""What ten thousand trials in flight do to a run, and what concurrency and ratio of nodes the published recipe needs.

    python -m bench.scheduler_scale [--steps N] [--small] [--only TABLE]

The real scheduler runs in virtual time over `seatrial_trainer.scheduling.workload`; 1 % of the trials fail by a tool
server and are retried. Engines and the training step are a model:

- An engine is a node of 8 GPUs. A token takes longer the more requests run beside it: 11 ms + 0.18 ms a neighbour for
  35B-A3B on H100, 24 ms + 0.36 ms for 397B-A17B on H200, from the bytes of weights and cache that a step has to read
  at 60 % of the memory's bandwidth. The caches of 10 and 12 of them hold 54 and 21 million tokens, from layers, heads
  and what the weights leave free; a full cache throws requests out, whose contexts are computed again.
- A step trains 256 trials in 100 s on 4 nodes and in 200 s on 8, in proportion to trials and nodes, and 20 s more for
  the optimiser and the weight sync.
- A trial is solved with 23 % at first and 33 % in the end, less the longer it is: by 8 points for each factor of e.

Ratios are `inference:train`; all rows of a table have the same number of nodes.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.scheduler import SchedulerSettings
from seatrial_trainer.scheduling.simulated_engines import EngineModel
from seatrial_trainer.scheduling.simulated_figures import SimulatedFigures, figures_of
from seatrial_trainer.scheduling.simulated_trials import Faults, Learning
from seatrial_trainer.scheduling.simulator import SimulationSpec, simulate

GROUP_SIZE = 16
RECIPE_GROUPS = 16
SEATS = 256
FIXED_SECONDS = 20.0
LEARNING = Learning(start=0.23, gain=0.10, cost_of_length=0.08)
HEADER = "step s | trials/s | requests an engine | trainer used | waited | held | groups by staleness, 0 … S"


@dataclass(frozen=True)
class Recipe:
    """One of the two published settings."""

    name: str
    engines: EngineModel
    train_nodes: int
    train_seconds: float
    concurrency: int

    def simulation(
        self,
        *,
        num_engines: int,
        train_nodes: int,
        num_groups: int,
        concurrency: int,
        max_staleness: int,
        num_steps: int,
    ) -> SimulationSpec:
        """The recipe on other nodes, with another batch."""
        model = self.engines
        share = num_engines / model.num_engines
        work = (self.train_seconds - FIXED_SECONDS) * self.train_nodes * num_groups / RECIPE_GROUPS
        return SimulationSpec(
            SchedulerSettings(
                "train", AssemblyRules(GROUP_SIZE, GROUP_SIZE // 2), num_groups, max_staleness, num_steps
            ),
            num_tasks=480,
            concurrency=concurrency,
            engines=replace(model, num_engines=num_engines, kv_capacity=int(model.kv_capacity * share)),
            faults=Faults(failing_share=0.01),
            learning=LEARNING,
            train_seconds=work / train_nodes + FIXED_SECONDS,
        )


SMALL = Recipe("35B-A3B", EngineModel(10, SEATS, 1 / 0.011, 0.00018, 54_000, 400.0), 4, 100.0, 550)
LARGE = Recipe("397B-A17B", EngineModel(12, SEATS, 1 / 0.024, 0.00036, 21_000, 150.0), 8, 200.0, 300)


def figures(recipe: Recipe, **setting: int) -> SimulatedFigures:
    """Simulate one row."""
    spec = recipe.simulation(**setting)
    return figures_of(simulate(spec), spec)


def line(found: SimulatedFigures) -> str:
    """The row's figures in the order of the header."""
    ages = " ".join(f"{share:.0%}" for share in found.staleness.values())
    return (
        f"{found.step_seconds:,.0f} | {found.trials_per_second:.2f} | {found.engines_used * SEATS:.1f} "
        f"| {found.trainer_used:.0%} | {found.waited:.0%} | {found.held:.0%} | {ages}"
    )


def print_concurrency(recipe: Recipe, num_steps: int) -> None:
    """How a step depends on the trials in flight, on the recipe's own nodes."""
    print(f"\n{recipe.name}, {recipe.engines.num_engines} + {recipe.train_nodes} nodes; recipe: {recipe.concurrency}\n")
    print(f"| in flight | {HEADER} |\n|{'---|' * 8}", flush=True)
    for concurrency in (100, 200, 300, 400, 550, 800, 1_024):
        found = figures(
            recipe,
            num_engines=recipe.engines.num_engines,
            train_nodes=recipe.train_nodes,
            num_groups=RECIPE_GROUPS,
            concurrency=concurrency,
            max_staleness=3,
            num_steps=num_steps,
        )
        print(f"| {concurrency:,} | {line(found)} |", flush=True)


def print_ratios(num_in_flight: int, num_nodes: int, num_steps: int) -> None:
    """How ten thousand trials in flight share out nodes."""
    print(f"\n{num_in_flight:,} in flight on {num_nodes} nodes, 35B-A3B\n")
    print(f"| ratio | S | {HEADER} |\n|{'---|' * 9}", flush=True)
    ratios = (((5, 1), 3), ((10, 4), 3), ((4, 2), 3), ((12, 8), 3), ((1, 1), 3), ((4, 2), 1), ((4, 2), 7))
    for (inference, train), max_staleness in ratios:
        num_engines = num_nodes * inference // (inference + train)
        found = figures(
            SMALL,
            num_engines=num_engines,
            train_nodes=num_nodes - num_engines,
            num_groups=num_in_flight // GROUP_SIZE // (max_staleness + 1),
            concurrency=num_in_flight,
            max_staleness=max_staleness,
            num_steps=max(num_steps, max_staleness + 3),
        )
        print(f"| {inference}:{train} | {max_staleness} | {line(found)} |", flush=True)


def print_cohorts(num_steps: int, num_seeds: int) -> None:
    """Reward by step and by cohort: why a run's own curve dips at first."""
    runs = []
    for seed in range(num_seeds):
        spec = SMALL.simulation(
            num_engines=10, train_nodes=4, num_groups=16, concurrency=550, max_staleness=3, num_steps=num_steps
        )
        spec = replace(spec, workload=replace(spec.workload, seed=seed))
        runs.append(figures_of(simulate(spec), spec))
    print(f"\nReward by training step and by admission cohort, mean of {num_seeds} seeds\n")
    print(f"| | {' | '.join(map(str, range(num_steps)))} |\n|---|{'---|' * num_steps}")
    print(f"| groups trained in step | {_means(run.reward_by_step for run in runs)} |")
    print(f"| groups admitted at version | {_means(run.reward_by_cohort for run in runs)} |")


def _means(rows: Iterable[tuple[float, ...]]) -> str:
    return " | ".join(f"{sum(values) / len(values):.3f}" for values in zip(*rows, strict=False))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--small", action="store_true", help="a tenth of the trials, to try the script")
    parser.add_argument("--only", choices=["small-model", "large-model", "cohorts", "ratios"], help="one of the tables")
    arguments = parser.parse_args()
    tables: dict[str, Callable[[], None]] = {
        "small-model": lambda: print_concurrency(SMALL, arguments.steps),
        "large-model": lambda: print_concurrency(LARGE, arguments.steps),
        "cohorts": lambda: print_cohorts(num_steps=12, num_seeds=2 if arguments.small else 16),
        "ratios": lambda: print_ratios(
            1_024 if arguments.small else 10_240, 18 if arguments.small else 180, num_steps=6
        ),
    }
    for name, print_table in tables.items():
        if arguments.only in {None, name}:
            print_table()


if __name__ == "__main__":
    main()
