"""A pack as tensors: what the model reads, how its tokens attend, and where its predictions stand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from seatrial_trainer.policy.packing import Pack


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which computed tokens each sequence of a pack attends from and to.

    A sequence's own tokens stand one after another; it attends from them to its path, which is the prefix that it
    shares and then its own tokens. Own token i of n therefore sees all of its path but the last n - 1 - i.
    """

    own_lengths: list[int]
    """Tokens that each sequence adds to the pack."""
    path_lengths: list[int]
    """Tokens of each sequence."""
    token_of_path: Tensor | None
    """Index of the token at each place of every path, path after path; none where nothing is shared."""

    def boundaries(self) -> tuple[Tensor, Tensor]:
        """Where each sequence's own tokens and its path begin and end, as variable-length kernels want it."""
        return _boundaries(self.own_lengths), _boundaries(self.path_lengths)


@dataclass(frozen=True, slots=True)
class Layout:
    """One pack on the model's device; hidden states are counted over all positions in order."""

    input_ids: Tensor
    position_ids: Tensor
    attention: AttentionPlan | None
    """None where rows are padded and the model's own causal attention suffices."""
    predictor: Tensor
    """Position whose hidden state predicts each target."""
    targets: Tensor
    """Token ids to predict, sequence by sequence in the order of the pack's members."""


def shared_layout(
    pack: Pack, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray], device: torch.device
) -> Layout:
    """One row that holds every token of the pack once.

    Args:
        pack: Members with their shared prefixes.
        sequences: Token ids of all sequences.
        predicted: Indices of the tokens to predict, for all sequences; each at least 1.
        device: Where the model is.
    """
    path = np.zeros(0, dtype=np.int64)
    tokens, positions, paths, predictors, targets = [], [], [], [], []
    num_tokens = 0
    for member in pack.members:
        ids = np.asarray(sequences[member.sequence], dtype=np.int64)
        wanted = predicted[member.sequence]
        own = np.arange(member.num_shared, _num_inputs(wanted))
        path = np.concatenate([path[: member.num_shared], num_tokens + np.arange(len(own))])
        num_tokens += len(own)
        tokens.append(ids[own])
        positions.append(own)
        paths.append(path)
        predictors.append(path[wanted - 1])
        targets.append(ids[wanted])

    def tensor(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    is_shared = any(member.num_shared for member in pack.members)
    attention = AttentionPlan(
        own_lengths=[len(own) for own in positions],
        path_lengths=[len(path) for path in paths],
        token_of_path=tensor(paths) if is_shared else None,
    )
    return Layout(tensor(tokens)[None], tensor(positions)[None], attention, tensor(predictors), tensor(targets))


def padded_layout(
    pack: Pack, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray], device: torch.device
) -> Layout:
    """One row a sequence, padded on the right, where causal attention never looks."""
    width = max(_num_inputs(predicted[member.sequence]) for member in pack.members)
    input_ids = np.zeros((len(pack.members), width), dtype=np.int64)
    predictors, targets = [], []
    for row, member in enumerate(pack.members):
        ids = np.asarray(sequences[member.sequence], dtype=np.int64)
        wanted = predicted[member.sequence]
        input_ids[row, : _num_inputs(wanted)] = ids[: _num_inputs(wanted)]
        predictors.append(row * width + wanted - 1)
        targets.append(ids[wanted])
    return Layout(
        input_ids=torch.from_numpy(input_ids).to(device),
        position_ids=torch.arange(width, device=device).expand(len(pack.members), width),
        attention=None,
        predictor=torch.from_numpy(np.concatenate(predictors)).to(device),
        targets=torch.from_numpy(np.concatenate(targets)).to(device),
    )


def _num_inputs(wanted: np.ndarray) -> int:
    """Tokens that the model has to read to predict the last one wanted."""
    return int(wanted[-1])


def _boundaries(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
