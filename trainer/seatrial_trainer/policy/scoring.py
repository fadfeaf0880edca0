"""Log probabilities of whole sequences, and those that a KL penalty is taken against, for every backend alike."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import override

import numpy as np

from seatrial_trainer.policy.batch import TrainingSequence
from seatrial_trainer.policy.protocol import PolicyBackend
from seatrial_trainer.policy.token_tensors import predicted_tokens


class ScoringBackend(PolicyBackend):
    """A backend that says how probable chosen tokens are; the rest follows."""

    @abstractmethod
    def score(
        self, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray], *, reference: bool
    ) -> list[list[float]]:
        """Log probabilities of the predicted tokens of each sequence, on every rank; all ranks call it together.

        Args:
            sequences: Token ids.
            predicted: Indices of the tokens to predict, in order; each at least 1.
            reference: Under the initial weights, not the trained ones.
        """
        ...

    @override
    def hold(self, state: Path, model: Path) -> Callable[[], None]:
        """Where a backend cannot hold a copy it writes at once."""
        self.save(state)
        self.export(model)
        return lambda: None

    @override
    def logprobs(self, sequences: list[list[int]], *, reference: bool = False) -> list[list[float]]:
        predicted = [np.arange(1, len(sequence)) for sequence in sequences]
        longer = [i for i, sequence in enumerate(sequences) if len(sequence) > 1]
        values = self.score([sequences[i] for i in longer], [predicted[i] for i in longer], reference=reference)
        by_sequence = dict(zip(longer, values, strict=True))
        return [[0.0, *by_sequence.get(i, [])][: len(sequence)] for i, sequence in enumerate(sequences)]

    def with_reference(self, sequences: list[TrainingSequence]) -> list[TrainingSequence]:
        """The sequences, with log probabilities under the reference where a KL penalty asks for them."""
        missing = [i for i, s in enumerate(sequences) if s.kl_coefficient > 0 and s.reference_logprobs is None]
        wanted = [predicted_tokens(sequences[i]) for i in missing]
        found = self.score([sequences[i].token_ids for i in missing], wanted, reference=True)
        completed = list(sequences)
        for i, positions, values in zip(missing, wanted, found, strict=True):
            logprobs = np.zeros(len(sequences[i].token_ids))
            logprobs[positions] = values
            completed[i] = replace(sequences[i], reference_logprobs=logprobs.tolist())
        return completed
