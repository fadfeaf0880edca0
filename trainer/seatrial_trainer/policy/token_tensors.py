"""What the loss needs to know of each predicted token of a pack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.batch import TrainingSequence
from seatrial_trainer.policy.packing import Pack


@dataclass(frozen=True, slots=True)
class TokenTensors:
    """One entry a sampled token, sequence by sequence in the order of the pack's members."""

    targets: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    kl_coefficients: Tensor
    is_fresh: Tensor
    """1 where the policy's very weights sampled the token, else 0."""
    reference_logprobs: Tensor | None
    """None where no sequence of the pack has a KL penalty."""

    @classmethod
    def of_pack(
        cls,
        pack: Pack,
        sequences: Sequence[TrainingSequence],
        predicted: Sequence[np.ndarray],
        targets: Tensor,
        fresh_version: int | None = None,
    ) -> Self:
        """Gather the sampled tokens' figures on the targets' device."""
        members = [(sequences[member.sequence], predicted[member.sequence]) for member in pack.members]

        def picked(values: Sequence[Sequence[float] | np.ndarray]) -> Tensor:
            parts = [np.asarray(v, dtype=np.float32)[wanted] for v, (_, wanted) in zip(values, members, strict=True)]
            return torch.from_numpy(np.concatenate(parts)).to(targets.device)

        def repeated(values: Sequence[float]) -> Tensor:
            counts = [len(wanted) for _, wanted in members]
            return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), counts)).to(targets.device)

        has_kl = any(sequence.kl_coefficient > 0 for sequence, _ in members)
        return cls(
            targets=targets,
            rollout_logprobs=picked([sequence.logprobs for sequence, _ in members]),
            advantages=repeated([sequence.advantage for sequence, _ in members]),
            weights=repeated([sequence.weight for sequence, _ in members]),
            kl_coefficients=repeated([sequence.kl_coefficient for sequence, _ in members]),
            is_fresh=picked([_freshness(sequence, fresh_version) for sequence, _ in members]),
            reference_logprobs=picked([s.reference_logprobs or s.logprobs for s, _ in members]) if has_kl else None,
        )

    def part(self, tokens: slice) -> "TokenTensors":
        """Some of the tokens."""
        return TokenTensors(
            self.targets[tokens],
            self.rollout_logprobs[tokens],
            self.advantages[tokens],
            self.weights[tokens],
            self.kl_coefficients[tokens],
            self.is_fresh[tokens],
            None if self.reference_logprobs is None else self.reference_logprobs[tokens],
        )


def _freshness(sequence: TrainingSequence, version: int | None) -> np.ndarray:
    if version is None or sequence.weight_versions is None:
        return np.zeros(len(sequence.token_ids))
    return np.equal(sequence.weight_versions, version).astype(np.float32)


def predicted_tokens(sequence: TrainingSequence) -> np.ndarray:
    """Indices of the sampled tokens.

    Raises:
        InvalidInputError: there is none, or the first token is among them, which nothing predicts.
    """
    wanted = np.flatnonzero(sequence.loss_mask)
    if len(wanted) == 0 or wanted[0] == 0:
        msg = f"a sequence of {len(sequence.token_ids)} tokens cannot be trained: " + (
            "none was sampled" if len(wanted) == 0 else "its first token has mask 1, but nothing predicts it"
        )
        raise InvalidInputError(msg)
    return wanted
