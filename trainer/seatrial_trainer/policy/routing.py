"""Which experts an engine sent each token to, from trajectories to arrays."""

import base64
import io
from collections.abc import Sequence

import numpy as np

from seatrial_api.errors import CorruptionError
from seatrial_api.trajectory import RoutedExperts

UNKNOWN = -1
"""In the place of an expert, where the engine did not say."""


def routed_experts(parts: Sequence[RoutedExperts], num_tokens: int) -> np.ndarray | None:
    """Experts of each token of a sequence, shape (tokens, layers, experts of a token); none where nothing is known.

    Raises:
        CorruptionError: a part is not what an engine writes, or reaches past the sequence.
    """
    found: np.ndarray | None = None
    for part in parts:
        try:
            choices = np.load(io.BytesIO(base64.b64decode(part.data, validate=True)), allow_pickle=False)
            if found is None:
                found = np.full((num_tokens, *choices.shape[1:]), UNKNOWN, dtype=np.int32)
            found[part.start : part.start + len(choices)] = choices
        except ValueError as exc:
            msg = f"experts of the tokens from {part.start} on, of {num_tokens}, cannot be read: {exc}"
            raise CorruptionError(msg) from exc
    return found
