"""Asynchronous training against synchronous and one-step-off training: one workload, one amount of compute.

    python bench/async_vs_sync.py [--steps N] [--seeds N]

The real scheduler runs in virtual time; engines and the training step are a model.

Workload: `seatrial_trainer.scheduling.workload`, batches of 16 groups of 16 trials. Every row trains the same tasks.
Compute: 6 nodes. Split rows generate on 4 and train on 2. The colocated row, the strongest synchronous opponent, uses
all 6 for either phase in turn, at no cost for switching.
Engines: one per node, latency-faithful. A request runs at 40 tokens/s while it has one of the node's 137 seats (550 on
4 nodes, the recipe's concurrency), else it waits; more nodes give more seats, not faster requests.
Training step: 6 FLOP per active parameter and token, with a third more for recomputation, 3e9 active parameters, at
15 % of 989 TFLOP/s on 8 GPUs a node, and 10 s for the weight sync. All tokens of the mean trajectory count.
"""

import argparse
from dataclasses import dataclass
from statistics import fmean

from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.scheduler import SchedulerSettings
from seatrial_trainer.scheduling.simulated_engines import EngineModel
from seatrial_trainer.scheduling.simulator import SimulationResult, SimulationSpec, simulate
from seatrial_trainer.scheduling.workload import Workload

GROUP_SIZE = BATCH_SIZE = 16
SEATS_PER_NODE = 137
NUM_TASKS = 480
SYNC_SECONDS = 10.0


@dataclass(frozen=True)
class Regime:
    """One row of the table."""

    name: str
    max_staleness: int
    rollout_nodes: int
    train_nodes: int
    concurrency: int = 550

    def train_seconds(self, mean_tokens: float) -> float:
        """Duration of a policy step and its weight sync."""
        flop = 6 * 3e9 * mean_tokens * GROUP_SIZE * BATCH_SIZE * 4 / 3
        return flop / (self.train_nodes * 8 * 989e12 * 0.15) + SYNC_SECONDS

    def run(self, workload: Workload, num_steps: int) -> SimulationResult:
        """Simulate the whole training."""
        rules = AssemblyRules(GROUP_SIZE, GROUP_SIZE // 2)
        return simulate(
            SimulationSpec(
                SchedulerSettings("train", rules, BATCH_SIZE, self.max_staleness, num_steps),
                num_tasks=NUM_TASKS,
                concurrency=self.concurrency,
                engines=EngineModel(num_engines=self.rollout_nodes, seats=SEATS_PER_NODE),
                workload=workload,
                train_seconds=self.train_seconds(mean_tokens(workload)),
            )
        )

    def seat_use(self, result: SimulationResult) -> float:
        """Share of the engines' seats that were taken, over the whole run."""
        return result.seat_seconds / (self.rollout_nodes * SEATS_PER_NODE * result.seconds)


REGIMES = (
    Regime("synchronous, 6 nodes colocated", 0, 6, 6),
    Regime("synchronous, split 4:2", 0, 4, 2),
    Regime("one step off, split 4:2", 1, 4, 2),
    Regime("asynchronous, S = 2", 2, 4, 2),
    Regime("asynchronous, S = 3", 3, 4, 2),
    Regime("asynchronous, S = 3, 1,024 trials in flight", 3, 4, 2, concurrency=1_024),
)


def mean_tokens(workload: Workload) -> float:
    """Mean context of a trial, over all tasks and places."""
    shapes = (workload.shape(f"task-{task:04d}", slot) for task in range(NUM_TASKS) for slot in range(GROUP_SIZE))
    return fmean(shape.context_tokens for shape in shapes)


def describe(workload: Workload) -> str:
    """The workload in one sentence."""
    shapes = [workload.shape(f"task-{task:04d}", slot) for task in range(NUM_TASKS) for slot in range(GROUP_SIZE)]
    tokens = sorted(shape.context_tokens for shape in shapes)
    seconds = sorted(shape.seconds(40.0) for shape in shapes)
    places = [int(len(shapes) * share) for share in (0.1, 0.5, 0.9, 0.99)]
    return (
        f"p10 / p50 / p90 / p99 of context {' / '.join(f'{tokens[place]:,}' for place in places)} tokens, "
        f"of duration {' / '.join(f'{seconds[place]:,.0f}' for place in places)} s"
    )


def main() -> None:
    """Print a table per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run")
    parser.add_argument("--seeds", type=int, default=1, help="workloads, one table each")
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        workload = Workload(seed=seed)
        print(f"\nSeed {seed}, {arguments.steps} steps: {describe(workload)}\n")
        print("| regime | seconds per step | x colocated sync | x split sync | seats used | held | staleness |")
        print("|---|---|---|---|---|---|---|")
        reference: list[float] = []
        for regime in REGIMES:
            result = regime.run(workload, arguments.steps)
            reference.append(result.seconds)
            staleness = fmean(steps for batch in result.batches for steps in batch.staleness)
            held = sum(batch.hold_seconds for batch in result.batches) / result.seconds
            print(
                f"| {regime.name} | {result.seconds / arguments.steps:,.0f} | {reference[0] / result.seconds:.2f} "
                f"| {reference[min(1, len(reference) - 1)] / result.seconds:.2f} | {regime.seat_use(result):.0%} "
                f"| {held:.0%} | {staleness:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
