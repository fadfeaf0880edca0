"""Attention and rotary positions of packed sequences, where Transformer Engine does not provide them."""

from typing import Any, override

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from seatrial_trainer.policy.attention import packed_attention


class PackedCoreAttention(nn.Module):
    """megatron-core's place for attention, filled by the torch backend's: each sequence sees itself alone.

    Where ranks share a pack's tokens, each gathers all keys and values and computes what its own tokens see.
    """

    def __init__(self, config: Any, *_args: Any, softmax_scale: float | None = None, **_kwargs: Any) -> None:
        super().__init__()
        self.config = config
        self._scale = softmax_scale

    @override
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, *, packed_seq_params: Any, **_kwargs: Any
    ) -> Tensor:
        """Queries, keys and values of shape (tokens, [1,] heads, head size) to (tokens, [1,] heads x head size)."""
        has_batch = query.ndim == 4
        if has_batch:
            query, key, value = query[:, 0], key[:, 0], value[:, 0]
        if parallel_state.get_context_parallel_world_size() > 1:
            key, value = _gathered(key, value)
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        plan = packed_seq_params.attention
        result, _ = packed_attention(self, q, k, v, None, attention_plan=plan, scaling=self._scale)
        return result[0].flatten(1)[:, None] if has_batch else result[0].flatten(1)


class PackRotary(nn.Module):
    """Rotary angles of a pack's tokens by their places in their sequences.

    megatron-core asks how long sequences may be, and then for the angles of so many places. Here the answer to the
    first question are the tokens' places, so that the second one is for their angles.
    """

    def __init__(self, inverse_frequencies: Tensor) -> None:
        super().__init__()
        self._inverse_frequencies = inverse_frequencies

    def get_rotary_seq_len(self, *args: Any) -> Tensor:
        """Places of the tokens, from the description of the pack, which megatron-core gives last."""
        positions: Tensor = args[-1].positions
        return positions

    @override
    def forward(self, positions: Tensor, **_options: Any) -> Tensor:
        """Angles of shape (tokens, 1, 1, rotated size)."""
        angles = torch.outer(positions.float(), self._inverse_frequencies.to(positions.device))
        return torch.cat((angles, angles), -1)[:, None, None]


def _gathered(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of all ranks that share the pack, rank after rank, in one exchange."""
    both = torch.cat((key, value), -1)
    group = parallel_state.get_context_parallel_group()
    both = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=group)
    return torch.split(both, [key.shape[-1], value.shape[-1]], -1)  # type: ignore[return-value]  # two parts
