"""How many weights each rank holds."""

from dataclasses import dataclass
from typing import assert_never

from seatrial_api.spec.backend import Parallelism
from seatrial_trainer.policy.sizing.shapes import Attention, LinearAttention, Mixer, ModelShape


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights of one rank, by how many ranks hold the same."""

    dense: int = 0
    """Outside of the experts: the same on every replica."""
    experts: int = 0
    """In the experts: the same on as many ranks as expert parallelism leaves."""

    def __add__(self, other: "Parameters") -> "Parameters":
        return Parameters(self.dense + other.dense, self.experts + other.experts)

    @property
    def total(self) -> int:
        """All."""
        return self.dense + self.experts


def padded_vocabulary(shape: ModelShape, tensor: int) -> int:
    """Tokens of the vocabulary with what fills it up to a multiple of the tensor ranks."""
    return -(-shape.vocabulary // tensor) * tensor


def stage_layers(shape: ModelShape, sizes: Parallelism) -> list[tuple[Mixer, ...]]:
    """Layers of each pipeline stage: one chunk of them, or several that come round in turn."""
    num_chunks = sizes.pipeline * sizes.virtual_pipeline
    count = shape.num_layers // num_chunks
    chunks = [shape.mixers[chunk * count : (chunk + 1) * count] for chunk in range(num_chunks)]
    return [sum(chunks[stage :: sizes.pipeline], start=()) for stage in range(sizes.pipeline)]


def stage_parameters(shape: ModelShape, sizes: Parallelism, stage: int) -> Parameters:
    """Weights of each rank of a pipeline stage, for sizes that divide the model."""
    layers = stage_layers(shape, sizes)[stage]
    counted = Parameters(dense=_outer(shape, sizes, stage))
    for mixer in set(layers):
        layer = _layer(shape, sizes, mixer)
        times = layers.count(mixer)
        counted += Parameters(layer.dense * times, layer.experts * times)
    return counted


def adapter_parameters(shape: ModelShape, sizes: Parallelism, stage: int, rank: int) -> int:
    """Adapters of each rank of a pipeline stage: of all linear layers but experts and the head, whole on each rank."""
    return rank * sum(_linear_ends(shape, mixer) for mixer in stage_layers(shape, sizes)[stage])


def whole_model(shape: ModelShape) -> Parameters:
    """Weights of the model."""
    return stage_parameters(shape, Parallelism(), 0)


def _outer(shape: ModelShape, sizes: Parallelism, stage: int) -> int:
    """Embedding on the first stage, final norm and head on the last, which has a copy of an embedding that is both."""
    table = padded_vocabulary(shape, sizes.tensor) // sizes.tensor * shape.hidden_size
    is_first, is_last = stage == 0, stage == sizes.pipeline - 1
    has_head = is_last and not (is_first and shape.ties_embeddings)
    return table * (is_first + has_head) + shape.hidden_size * is_last


def _layer(shape: ModelShape, sizes: Parallelism, mixer: Mixer) -> Parameters:
    hidden, tensor = shape.hidden_size, sizes.tensor
    norms = 2 * hidden
    match mixer:
        case "attention":
            mixing = _attention(shape.attention, hidden, tensor)
        case "linear_attention":
            mixing = _linear_attention(shape.linear_attention, hidden, tensor)
        case _:
            assert_never(mixer)
    if (experts := shape.experts) is None:
        return Parameters(norms + mixing + 3 * hidden * shape.mlp_width // tensor)
    router = hidden * experts.count
    shared = 3 * hidden * experts.shared_width // tensor + (hidden if experts.shared_width else 0)
    own = 3 * hidden * experts.width * experts.count // (sizes.expert * sizes.expert_tensor)
    return Parameters(norms + mixing + router + shared, own)


def _linear_ends(shape: ModelShape, mixer: Mixer) -> int:
    """Inputs and outputs of a layer's linear layers, added up."""
    hidden, attention, linear = shape.hidden_size, shape.attention, shape.linear_attention
    if mixer == "attention":
        queries = attention.query_size * (2 if attention.has_output_gate else 1)
        mixing = 3 * hidden + queries + 2 * attention.key_size + attention.query_size + hidden
    elif linear is not None:
        inputs = 2 * linear.key_size + 2 * linear.value_size + 2 * linear.value_heads
        mixing = 4 * hidden + inputs + linear.value_size + hidden
    else:
        mixing = 0
    width = shape.experts.shared_width if shape.experts else shape.mlp_width
    return mixing + (3 * (hidden + width) if width else 0)


def _attention(attention: Attention, hidden: int, tensor: int) -> int:
    queries = attention.query_size * (2 if attention.has_output_gate else 1)
    inputs = queries + 2 * attention.key_size
    matrices = hidden * (inputs + attention.query_size)
    norms = 2 * attention.head_size if attention.has_qk_norm else 0
    return (matrices + (inputs if attention.has_bias else 0)) // tensor + norms


def _linear_attention(linear: LinearAttention | None, hidden: int, tensor: int) -> int:
    if linear is None:
        return 0
    convolved = 2 * linear.key_size + linear.value_size
    inputs = convolved + linear.value_size + 2 * linear.value_heads  # and the gate, and two numbers for each head
    matrices = hidden * (inputs + linear.value_size)
    of_heads = convolved * linear.convolution + 2 * linear.value_heads
    return (matrices + of_heads) // tensor + linear.value_head_size
