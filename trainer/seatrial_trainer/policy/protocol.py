"""The protocol that every policy backend keeps."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch

from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats


class PolicyBackend(Protocol):
    """One rank of the policy; every method is called on all ranks in the same order."""

    def forward_backward(self, minibatch: Minibatch) -> StepStats:
        """Accumulate gradients of the whole mini-batch, packed under the token budget."""
        ...

    def optim_step(self, learning_rate: float) -> OptimStats:
        """Clip, step, zero the gradients."""
        ...

    def logprobs(self, sequences: list[list[int]], *, reference: bool = False) -> list[list[float]]:
        """Log probability of each token given those before it (0 for the first), at T=1."""
        ...

    def save(self, directory: Path) -> None:
        """Write weights, optimiser and RNG so that `load` restores them bitwise."""
        ...

    def hold(self, state: Path, model: Path) -> Callable[[], None]:
        """Take what `save` and `export` would write now; calling what is returned writes what of it is not yet.

        That is done in a thread of its own, on all ranks together, while training goes on.
        """
        ...

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote."""
        ...

    def export_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights under their Hugging Face names, in the engines' number format.

        The first rank gives them all; what others give is the backend's affair.
        """
        ...

    def export(self, directory: Path) -> int:
        """Write a model directory that engines read, from the first rank; returns the bytes of what it wrote."""
        ...
