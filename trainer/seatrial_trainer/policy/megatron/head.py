"""The end of the model: log probabilities of chosen tokens, without the whole vocabulary on one rank."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region, vocab_parallel_cross_entropy
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Head:
    """Output layer and softmax, both cut over tensor ranks by tokens of the vocabulary."""

    def __init__(self, vocab_size: int, rows: int) -> None:
        self._vocab_size = vocab_size
        self._rows = rows
        """Tokens whose logits may exist at once; more are computed piece by piece, and again in the backward pass."""

    def __call__(
        self, hidden_states: Tensor, output_layer: Any, output_weight: Tensor | None, predictor: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log probability and entropy of each target; the entropy has no gradient.

        Args:
            hidden_states: Of all tokens, shape (tokens or a rank's share of them, 1, hidden size).
            output_layer: megatron-core's.
            output_weight: The embedding's weight where it is shared.
            predictor: Position whose hidden state predicts each target.
            targets: Token ids.
        """
        if parallel_state.get_tensor_model_parallel_world_size() > 1:  # each rank holds a part of the sequence
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
        chosen = hidden_states[:, 0].index_select(0, predictor)

        def piece(hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
            logits, _ = output_layer(hidden[:, None], weight=output_weight)
            logits = self._without_padding(logits.float())
            return -vocab_parallel_cross_entropy(logits.clone(), wanted[:, None])[:, 0], _entropy(logits.detach())[:, 0]

        compute: Callable[..., Any] = piece
        if len(chosen) > self._rows:
            compute = lambda *args: checkpoint(piece, *args, use_reentrant=False)  # noqa: E731
        pieces = zip(torch.split(chosen, self._rows), torch.split(targets, self._rows), strict=True)
        logprobs, entropies = zip(*(compute(*one) for one in pieces), strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _without_padding(self, logits: Tensor) -> Tensor:
        first = logits.shape[-1] * parallel_state.get_tensor_model_parallel_rank()
        own = self._vocab_size - first
        if own >= logits.shape[-1]:
            return logits
        padding = torch.arange(logits.shape[-1], device=logits.device) >= own
        return logits.masked_fill(padding, torch.finfo(logits.dtype).min)


def _entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of distributions whose logits are cut over tensor ranks."""
    group = parallel_state.get_tensor_model_parallel_group()
    largest = logits.max(-1).values
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest[..., None]
    odds = shifted.exp()
    sums = torch.stack([odds.sum(-1), (odds * shifted).sum(-1)])
    dist.all_reduce(sums, group=group)
    return sums[0].log() - sums[1] / sums[0]
