"""Context parallelism: ranks that share the tokens of each pack.

The row of a pack's tokens is cut into twice as many chunks as there are ranks. Rank r of n holds chunks r and
2n - 1 - r, an early and a late one, so that all ranks compute about as many scores of a long sequence. Keys and values
are gathered for attention (as Llama 3 does, arXiv:2407.21783, section 3.3.2); everything else in a model is each
token's own affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from seatrial_trainer.policy.layout import AttentionPlan


@dataclass(frozen=True, slots=True)
class ContextShare:
    """One rank's part of a row."""

    rank: int
    num_ranks: int
    num_tokens: int
    """Of the row; a multiple of twice the ranks where there are several."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First place and end of each run of tokens that the rank holds, in the row's order."""
        return _spans(self.rank, self.num_ranks, self.num_tokens)

    @property
    def places(self) -> np.ndarray:
        """Place in the row of each token that the rank holds."""
        return np.concatenate([np.arange(*span) for span in self.spans])

    def attention(self, lengths: Sequence[int]) -> AttentionPlan:
        """What the rank's tokens attend to, in keys and values as gathering leaves them: rank after rank.

        Args:
            lengths: Tokens of each sequence, which fill the row.
        """
        if self.num_ranks == 1:
            return AttentionPlan(list(lengths), list(lengths), token_of_path=None)
        ends = np.cumsum(lengths)
        gathered = np.concatenate(
            [ContextShare(r, self.num_ranks, self.num_tokens).places for r in range(self.num_ranks)]
        )
        place_of = np.argsort(gathered)
        own_lengths, paths = [], []
        for start, stop in self.spans:
            for begin, end in zip(ends - lengths, ends, strict=True):
                first, last = max(start, begin), min(stop, end)
                if first < last:
                    own_lengths.append(int(last - first))
                    paths.append(place_of[begin:last])
        return AttentionPlan(own_lengths, [len(path) for path in paths], torch.from_numpy(np.concatenate(paths)))


def _spans(rank: int, num_ranks: int, num_tokens: int) -> list[tuple[int, int]]:
    if num_ranks == 1:
        return [(0, num_tokens)]
    size = num_tokens // (2 * num_ranks)
    return [(rank * size, (rank + 1) * size), (num_tokens - (rank + 1) * size, num_tokens - rank * size)]
