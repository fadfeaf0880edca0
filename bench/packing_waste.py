"""How much of what the trainer computes is padding, how much is shared, and how long ranks wait for the fullest.

    python -m bench.packing_waste [--seeds N]

Batches of 16 groups of 16 trajectories with a published recipe's lengths, each group with a prompt of its own; the
trainer's own plans under a token budget, and what is common: micro-batches of four in the order in which they came,
each padded to its longest. Nothing is computed, so the machine does not matter.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from seatrial_trainer.policy.packing import Member, Pack, plan_packed, plan_padded, plan_shared, share_of_rank
from seatrial_trainer.scheduling.workload import Workload

GROUPS, GROUP_SIZE, PROMPT_TOKENS = 16, 16, 1_500
BUDGET = 131_072
RANKS = 8
MICROBATCH = 4

type Planner = Callable[[Sequence[list[int]], int], list[Pack]]


def plan_as_they_come(sequences: Sequence[list[int]], _budget: int) -> list[Pack]:
    """Micro-batches of a fixed number of sequences, each padded to its longest."""
    packs = []
    for start in range(0, len(sequences), MICROBATCH):
        row = range(start, min(start + MICROBATCH, len(sequences)))
        num_positions = len(row) * max(len(sequences[i]) for i in row)
        num_tokens = sum(len(sequences[i]) for i in row)
        packs.append(Pack([Member(i, 0) for i in row], num_positions, num_positions - num_tokens))
    return packs


PLANNERS: dict[str, Planner] = {
    "torch: shared prefixes once": plan_shared,
    "megatron: packed": plan_packed,
    "torch, recurrent layers: padded by length": plan_padded,
    "micro-batches of four as they come": plan_as_they_come,
}


def make_batch(seed: int) -> list[list[int]]:
    """Token ids of a batch's trajectories, in the order of their groups."""
    workload, rng = Workload(seed=seed), random.Random(seed)  # noqa: S311  a benchmark's data
    batch = []
    for group in range(GROUPS):
        prompt = [rng.randrange(1000) for _ in range(PROMPT_TOKENS)]
        for slot in range(GROUP_SIZE):
            length = max(workload.shape(f"task-{group}", slot).context_tokens, PROMPT_TOKENS + 1)
            batch.append(prompt + rng.choices(range(1000), k=length - PROMPT_TOKENS))
    return batch


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    found: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for seed in range(parser.parse_args().seeds):
        batch = make_batch(seed)
        num_tokens = sum(map(len, batch))
        for name, plan in PLANNERS.items():
            packs = plan(batch, BUDGET)
            computed = sum(pack.num_positions for pack in packs)
            loads = [sum(p.num_positions for p in share_of_rank(packs, rank, RANKS)) for rank in range(RANKS)]
            padding = sum(pack.num_padding for pack in packs) / computed
            found[name].append((padding, computed / num_tokens, 1 - fmean(loads) / max(loads)))
    print(f"| plan | padding | positions a token | idle over {RANKS} ranks |\n| --- | ---: | ---: | ---: |")
    for name, figures in found.items():
        padding, positions, idle = (fmean(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {padding:.1%} | {positions:.2f} | {idle:.1%} |")


if __name__ == "__main__":
    main()
