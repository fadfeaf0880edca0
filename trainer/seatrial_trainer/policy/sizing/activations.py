"""How many values a layer keeps for its backward pass.

Counted tensor by tensor as Korthikanti et al. 2022 do (arXiv:2205.05198, section 4), for the layers of today: kernels
that never write attention's scores, gated MLPs with a fused activation, no dropout, experts. Tensor ranks that cut what
stands between the matrices along the sequence divide everything by their number.
"""

from typing import Literal

from seatrial_api.spec.backend import Parallelism
from seatrial_trainer.policy.sizing.shapes import Attention, LinearAttention, Mixer, ModelShape

Recompute = Literal["None", "Selective", "Full"]

_CHUNK = 64
"""Tokens that the delta rule's kernel solves at once; it keeps so many numbers a token and head."""


def kept_values(shape: ModelShape, mixer: Mixer, sizes: Parallelism, tokens: int, recompute: Recompute) -> int:
    """Values that a layer keeps until its backward pass, on one rank.

    `Full` keeps the layer's input. `Selective` computes attention's kernel again, which saves little where that keeps
    no scores: the two numbers that it notes for each token and head.

    Args:
        shape: The model.
        mixer: The layer's kind.
        sizes: Ranks that share the layer.
        tokens: Tokens of a micro-batch that this rank's group of tensor ranks computes.
        recompute: What is computed again.
    """
    if recompute == "Full":
        return _per_rank(shape.hidden_size * tokens, sizes)
    own = _layer_values(shape, mixer, sizes)
    if recompute == "Selective" and mixer == "attention":
        own -= 2 * shape.attention.heads
    return _per_rank(own * tokens, sizes)


def working_values(shape: ModelShape, mixer: Mixer, sizes: Parallelism, tokens: int, recompute: Recompute) -> int:
    """Values that the layer that is computed takes beside them.

    The gradients of its activations, one after another, are taken for as many as there are of these; what is computed
    again is there too, and the whole sequence, which tensor ranks gather before a matrix.
    """
    times = 2 if recompute == "Full" else 1
    gathered = shape.hidden_size * tokens if sizes.tensor > 1 else 0
    return times * _per_rank(_layer_values(shape, mixer, sizes) * tokens, sizes) + gathered


def _per_rank(values: int, sizes: Parallelism) -> int:
    return -(-values // sizes.tensor)


def _layer_values(shape: ModelShape, mixer: Mixer, sizes: Parallelism) -> int:
    """Values a token, over all tensor ranks: twice a norm's input and output, and what is between and behind."""
    linear = shape.linear_attention
    mixing = _attention(shape.attention) if mixer == "attention" or linear is None else _linear_attention(linear)
    return 4 * shape.hidden_size + mixing + _mlp(shape, sizes)


def _attention(attention: Attention) -> int:
    """Queries, keys and values; queries and keys once more before their norms; the result; a gate and its product."""
    inputs = attention.query_size + 2 * attention.key_size
    before_norms = attention.query_size + attention.key_size if attention.has_qk_norm else 0
    gate = 2 * attention.query_size if attention.has_output_gate else 0
    return inputs + before_norms + attention.query_size + gate + 2 * attention.heads


def _linear_attention(linear: LinearAttention) -> int:
    """Before and behind the convolution; queries and keys for each value head, normed; the solved chunks; the rest.

    The rest is the result, the gate, and the result normed and gated.
    """
    convolved = 2 * linear.key_size + linear.value_size
    repeated = 2 * 2 * linear.value_heads * linear.key_head_size
    return 2 * convolved + repeated + linear.value_heads * (_CHUNK + 4) + 3 * linear.value_size


def _mlp(shape: ModelShape, sizes: Parallelism) -> int:
    """What gate and up give, and their product; for experts as often as a token is sent, with the token itself.

    Tokens are taken to go to all experts alike. Ranks that share each expert all get its tokens.
    """
    if (experts := shape.experts) is None:
        return 3 * shape.mlp_width
    sent = experts.chosen * (shape.hidden_size * sizes.expert_tensor + 3 * experts.width)
    return sent + 3 * experts.shared_width + 3 * experts.count
