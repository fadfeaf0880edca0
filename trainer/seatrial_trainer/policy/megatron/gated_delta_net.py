"""Gated DeltaNet on packs whose row of tokens is cut over context ranks as a whole."""

import copy
from typing import Any, override

from megatron.core.ssm.gated_delta_net import GatedDeltaNet, common, gdn
from torch import Tensor

from seatrial_trainer.policy.megatron.microbatches import PackParams


class PackedGatedDeltaNet(GatedDeltaNet):  # type: ignore[misc]  # untyped
    """megatron-core's layer, which exchanges tokens for heads and back where context ranks share a pack.

    It takes each sequence to be cut into an early and a late chunk for each rank, so that lengths must be multiples of
    them. Here the row is: in the exchange it counts as one sequence, and in the recurrence it is many.
    """

    @override
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        packed_seq_params: PackParams,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        pack = copy.copy(packed_seq_params)
        pack.qkv_format = "thd"
        result: tuple[Tensor, Tensor | None] = super().forward(
            hidden_states, attention_mask, *args, packed_seq_params=pack, **kwargs
        )
        return result

    @override
    def _compute_g_and_beta(self, decay: Tensor, *inputs: Tensor) -> Any:
        return super()._compute_g_and_beta(decay.float(), *inputs)  # its exponential, as transformers and vLLM have it

    @override
    def _resolve_cu_seqlens(self, _padded: Tensor | None, boundaries: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return boundaries


def _order_of_row(boundaries: Tensor, num_ranks: int, num_tokens: int) -> Any:
    """Where each token of the row is once ranks have exchanged theirs, and the way back."""
    return _order_of_sequences(boundaries[[0, -1]], num_ranks, num_tokens)


_order_of_sequences = common._build_thd_cp_a2a_perm  # noqa: SLF001  the one place where the layer decides it
gdn._build_thd_cp_a2a_perm = _order_of_row  # noqa: SLF001
