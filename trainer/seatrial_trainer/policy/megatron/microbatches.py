"""Packs as megatron-core reads them: one row of tokens, with the boundaries of its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from seatrial_trainer.policy.layout import AttentionPlan, shared_layout
from seatrial_trainer.policy.megatron.context import ContextShare
from seatrial_trainer.policy.megatron.mesh import Mesh
from seatrial_trainer.policy.packing import Pack


@dataclass
class PackParams(PackedSeqParams):  # type: ignore[misc]  # untyped
    """What every layer is told of a pack, for Transformer Engine's attention and for ours."""

    attention: AttentionPlan | None = None
    positions: Tensor | None = None
    """Place of each of this rank's tokens in its sequence."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One forward pass of a replica, as one of the ranks that share its tokens sees it."""

    pack: Pack
    input_ids: Tensor
    """Of this rank's tokens, shape (1, tokens)."""
    sequences: PackParams
    targets: Tensor
    """Token ids to predict, of the whole pack; none where this replica only keeps step with the others."""
    own: Tensor
    """Targets whose predictors this rank holds, by index."""
    predictor: Tensor
    """For each of those, which of this rank's tokens predicts it."""

    @classmethod
    def of_pack(
        cls,
        pack: Pack,
        sequences: Sequence[list[int]],
        predicted: Sequence[np.ndarray],
        device: torch.device,
        mesh: Mesh,
    ) -> "Microbatch":
        """The tensors of one pack, padded at its end so that all ranks get equally many tokens.

        Args:
            pack: Members that share nothing.
            sequences: Token ids of all sequences.
            predicted: Indices of the tokens to predict, for all sequences; each at least 1.
            device: Where the model is.
            mesh: The ranks that share the pack.
        """
        layout = shared_layout(pack, sequences, predicted, torch.device("cpu"))
        assert layout.attention is not None  # noqa: S101  for the type checker: packs without padding have one
        num_tokens = layout.input_ids.shape[1]
        padding = -num_tokens % mesh.row_multiple
        share = ContextShare(mesh.context_rank, mesh.sizes.context, num_tokens + padding)
        lengths = [*layout.attention.own_lengths, *([padding] if padding else [])]
        places = torch.from_numpy(share.places)
        held = torch.full((share.num_tokens,), -1)
        held[places] = torch.arange(len(places))
        predictor = held[layout.predictor]
        own = (predictor >= 0).nonzero()[:, 0]

        def this_ranks(row: Tensor) -> Tensor:
            return torch.nn.functional.pad(row, (0, padding))[:, places].to(device)

        return cls(
            pack=Pack(pack.members, share.num_tokens, padding),
            input_ids=this_ranks(layout.input_ids),
            sequences=_pack_params(lengths, this_ranks(layout.position_ids)[0], share),
            targets=layout.targets.to(device),
            own=own.to(device),
            predictor=predictor[own].to(device),
        )

    @classmethod
    def idle(cls, device: torch.device, mesh: Mesh) -> "Microbatch":
        """One that adds nothing, for a replica that has no pack left while others have."""
        share = ContextShare(mesh.context_rank, mesh.sizes.context, mesh.row_multiple)
        places = torch.from_numpy(share.places).to(device)
        params = _pack_params([share.num_tokens], places, share)
        none = places[:0]
        pack = Pack([], share.num_tokens, share.num_tokens)
        return cls(pack, torch.zeros_like(places)[None], params, targets=none, own=none, predictor=none)


def _pack_params(lengths: list[int], positions: Tensor, share: ContextShare) -> PackParams:
    boundaries = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=positions.device)
    attention, longest = share.attention(lengths), max(lengths)
    if attention.token_of_path is not None:
        attention = replace(attention, token_of_path=attention.token_of_path.to(positions.device))
    return PackParams(
        qkv_format="thd" if share.num_ranks == 1 else "sbhd",  # of the former megatron-core knows how ranks share it
        cu_seqlens_q=boundaries,
        cu_seqlens_kv=boundaries,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        attention=attention,
        positions=positions,
    )
