"""The learning rate as a pure function of the step."""

import math
from typing import assert_never

from seatrial_api.spec.algorithm import OptimizerSpec


def learning_rate(step: int, num_steps: int, spec: OptimizerSpec) -> float:
    """The rate of one training batch.

    The rate rises linearly over the warm-up and reaches the peak in its last batch; `Linear` and `Cosine` then fall to
    `min_learning_rate_fraction` of the peak, which the last batch gets.

    Args:
        step: Index of the batch, from 0.
        num_steps: Batches of the whole stage.
        spec: Peak, warm-up and schedule.
    """
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    span = num_steps - 1 - max(spec.warmup_steps - 1, 0)
    progress = min((step - max(spec.warmup_steps - 1, 0)) / span, 1.0) if span > 0 else 0.0
    floor = spec.min_learning_rate_fraction
    match spec.schedule:
        case "Constant":
            share = 1.0
        case "Linear":
            share = 1 - (1 - floor) * progress
        case "Cosine":
            share = floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
        case _:
            assert_never(spec.schedule)
    return spec.learning_rate * share
