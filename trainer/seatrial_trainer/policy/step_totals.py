"""Sums over the tokens of a mini-batch, kept on the device until its end."""

from typing import Protocol

import torch
from torch import Tensor

from seatrial_trainer.algorithms.losses import mismatch_kl
from seatrial_trainer.policy.batch import StepStats
from seatrial_trainer.policy.token_tensors import TokenTensors

_SUMS = (
    *("loss", "num_tokens", "entropy", "abs_diff", "mismatch_kl", "clipped", "kl"),
    *("fresh_tokens", "fresh_abs_diff", "computed", "padding", "read"),
)


class Sums(Protocol):
    """How figures are put together over ranks: `Ranks`, or a mesh on which some ranks hold the same."""

    def sum_(self, tensor: Tensor) -> None:
        """Add up over all ranks, in place."""
        ...

    def max_(self, tensor: Tensor) -> None:
        """Take the largest over all ranks, element by element, in place."""
        ...


class StepTotals:
    """Adds up what `StepStats` reports; reading it once a mini-batch spares the device a wait for each pack."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._max_abs_diff = torch.zeros(1, dtype=torch.float64, device=device)

    def add_pack(self, *, num_positions: int, num_padding: int, num_read: int) -> None:
        """Count one pack: positions computed, padding among them, tokens of its sequences."""
        self._add(computed=num_positions, padding=num_padding, read=num_read)

    @torch.no_grad()
    def add_tokens(
        self,
        tokens: TokenTensors,
        *,
        loss: Tensor,
        logprobs: Tensor,
        entropy: Tensor,
        clipped: Tensor,
        kl: Tensor,
    ) -> None:
        """Count sampled tokens: their weighted loss summed, everything else one value a token."""
        difference = (logprobs - tokens.rollout_logprobs).abs()
        self._add(
            loss=loss,
            num_tokens=len(logprobs),
            entropy=entropy.sum(),
            abs_diff=difference.sum(),
            mismatch_kl=mismatch_kl(logprobs, tokens.rollout_logprobs).sum(),
            clipped=clipped.sum(),
            kl=kl.sum(),
            fresh_tokens=tokens.is_fresh.sum(),
            fresh_abs_diff=(difference * tokens.is_fresh).sum(),
        )
        self._max_abs_diff = torch.maximum(self._max_abs_diff, difference.max().double())

    def stats(self, ranks: Sums, *, seconds: float) -> StepStats:
        """The figures of the whole mini-batch over all ranks."""
        ranks.sum_(self._sums)
        ranks.max_(self._max_abs_diff)
        total = dict(zip(_SUMS, self._sums.tolist(), strict=True))
        tokens = max(total["num_tokens"], 1.0)
        return StepStats(
            loss=total["loss"],
            num_tokens=int(total["num_tokens"]),
            num_total_tokens=int(total["read"]),
            entropy=total["entropy"] / tokens,
            logprob_abs_diff_mean=total["abs_diff"] / tokens,
            logprob_abs_diff_max=float(self._max_abs_diff),
            mismatch_kl=total["mismatch_kl"] / tokens,
            clipped_fraction=total["clipped"] / tokens,
            kl_to_reference=total["kl"] / tokens,
            packing_waste=total["padding"] / max(total["computed"], 1.0),
            seconds=seconds,
            num_fresh_tokens=int(total["fresh_tokens"]),
            fresh_logprob_abs_diff_sum=total["fresh_abs_diff"],
            extra={"computed_tokens": total["computed"]},
        )

    def _add(self, **amounts: Tensor | float) -> None:
        for name, amount in amounts.items():
            self._sums[_SUMS.index(name)] += amount
