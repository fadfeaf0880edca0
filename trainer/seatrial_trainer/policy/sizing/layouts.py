"""Whether a layout divides a model, and how much of a pipeline stands idle."""

from collections.abc import Iterator

from seatrial_api.refusals import Refusal
from seatrial_api.spec.backend import Parallelism, TrainerSpec
from seatrial_trainer.policy.sizing.shapes import ModelShape

_FIELD = "spec.trainer.parallelism"


def layout_problems(shape: ModelShape, trainer: TrainerSpec) -> list[Refusal]:
    """Every size that does not divide what it cuts; ranks are the API's to check, a vocabulary is padded."""
    return [*indivisible(shape, trainer.parallelism), *_unshared_heads(shape, trainer.parallelism)]


def num_replicas(trainer: TrainerSpec) -> int:
    """Replicas of what stands outside of the experts."""
    sizes = trainer.parallelism
    return trainer.ranks // (sizes.tensor * sizes.pipeline * sizes.context)


def num_expert_replicas(trainer: TrainerSpec) -> int:
    """Ranks that hold the same experts."""
    sizes = trainer.parallelism
    return trainer.ranks // (sizes.expert * sizes.expert_tensor * sizes.pipeline)


def idle_share(num_stages: int, num_microbatches: int, chunks: int = 1) -> float:
    """Share of a step that a rank waits for others to fill and drain the pipeline.

    `(p - 1) / (v m + p - 1)`: Narayanan et al. 2021 (arXiv:2104.04473), section 2.2, where the same time stands over
    the ideal one.

    Args:
        num_stages: p.
        num_microbatches: m, of one replica's step.
        chunks: v, parts of the model that a rank holds in turn.
    """
    return (num_stages - 1) / (chunks * num_microbatches + num_stages - 1)


def indivisible(shape: ModelShape, sizes: Parallelism) -> Iterator[Refusal]:
    """Every size that does not divide what it cuts."""
    experts, linear = shape.experts, shape.linear_attention
    wanted = [
        ("tensor", sizes.tensor, "attention heads", shape.attention.heads),
        ("tensor", sizes.tensor, "MLP width", shape.mlp_width or (experts.shared_width if experts else 0)),
        ("tensor", sizes.tensor, "linear-attention key heads", linear.key_heads if linear else 0),
        ("tensor", sizes.tensor, "linear-attention value heads", linear.value_heads if linear else 0),
        ("pipeline", sizes.pipeline, "layers", shape.num_layers),
        ("virtualPipeline", sizes.virtual_pipeline, "layers of a stage", shape.num_layers // sizes.pipeline),
        ("expert", sizes.expert, "experts", experts.count if experts else 1),
        ("expertTensor", sizes.expert_tensor, "expert width", experts.width if experts else 1),
    ]
    for field, size, what, count in wanted:
        if count % size:
            yield Refusal(f"{_FIELD}.{field}", f"{size} does not divide the model's {count} {what}; choose a divisor")
    keys = shape.attention.kv_heads
    if keys % sizes.tensor and sizes.tensor % keys:
        message = f"{sizes.tensor} neither divides the model's {keys} key-value heads nor is a multiple of them"
        yield Refusal(f"{_FIELD}.tensor", message)


def _unshared_heads(shape: ModelShape, sizes: Parallelism) -> Iterator[Refusal]:
    """Context ranks share a pack's tokens, and in linear attention its heads, with those that share matrices."""
    heads = shape.linear_attention.key_heads if shape.linear_attention else 0
    if sizes.context > 1 and heads % (sizes.tensor * sizes.context):
        ranks = f"{sizes.context} x {sizes.tensor} tensor ranks"
        message = f"{ranks} do not divide the model's {heads} linear-attention key heads; choose fewer"
        yield Refusal(f"{_FIELD}.context", message)
