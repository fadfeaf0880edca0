"""Which layout to take where the given one does not fit."""

from collections.abc import Callable, Iterator
from itertools import product

from pydantic import ValidationError

from seatrial_api.spec.backend import Parallelism, TrainerSpec
from seatrial_trainer.policy.sizing.layouts import layout_problems
from seatrial_trainer.policy.sizing.memory import Load, rank_memories
from seatrial_trainer.policy.sizing.shapes import ModelShape

_MAX_GROWTH = 8
"""Times the ranks that are asked for, at most."""


def propose(
    shape: ModelShape,
    trainer: TrainerSpec,
    load: Load,
    *,
    gpu_bytes: int,
    gpus_per_node: int,
    is_allowed: Callable[[TrainerSpec], bool] = lambda _: True,
) -> TrainerSpec | None:
    """The nearest settings that fit: other sizes first, then recomputation and offloading, then more ranks.

    Among sizes that fit, those come first that exchange least: a small product of tensor, pipeline and context ranks,
    then few stages, then tensor before context ranks, and experts over no more ranks than they need.

    Args:
        shape: The model.
        trainer: Settings to keep as far as they fit.
        load: What a rank is given to do.
        gpu_bytes: Memory of a GPU that may be used.
        gpus_per_node: Tensor ranks stay within a node.
        is_allowed: Whether nothing else speaks against settings.
    """
    for wanted in _settings(trainer):
        for sizes in _sizes(shape, wanted.ranks, gpus_per_node):
            if (candidate := _with_sizes(wanted, sizes)) is None or layout_problems(shape, candidate):
                continue
            fits = max(memory.total for memory in rank_memories(shape, candidate, load)) <= gpu_bytes
            if fits and is_allowed(candidate):
                return candidate
    return None


def _settings(trainer: TrainerSpec) -> Iterator[TrainerSpec]:
    ranks = trainer.ranks
    while ranks <= _MAX_GROWTH * trainer.ranks:
        for changes in ({}, {"recompute": "Full"}, {"recompute": "Full", "offload_optimizer": True}):
            yield trainer.model_copy(update={"ranks": ranks, "parallelism": Parallelism(), **changes})
        ranks *= 2


def _sizes(shape: ModelShape, ranks: int, gpus_per_node: int) -> list[Parallelism]:
    experts = _divisors(shape.experts.count, ranks) if shape.experts else [1]
    tensors, pipelines = _divisors(gpus_per_node, ranks), _divisors(shape.num_layers, ranks)
    every = product(tensors, pipelines, _divisors(ranks, ranks), experts)
    found = [Parallelism(tensor=t, pipeline=p, context=c, expert=e) for t, p, c, e in every if t * p * c <= ranks]
    return sorted(found, key=lambda s: (s.tensor * s.pipeline * s.context, s.pipeline, s.context, s.expert))


def _divisors(count: int, limit: int) -> list[int]:
    return [size for size in range(1, min(count, limit) + 1) if count % size == 0]


def _with_sizes(trainer: TrainerSpec, sizes: Parallelism) -> TrainerSpec | None:
    try:
        return TrainerSpec.model_validate({**dict(trainer), "parallelism": sizes})
    except ValidationError:
        return None
