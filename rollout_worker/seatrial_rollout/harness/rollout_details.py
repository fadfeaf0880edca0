"""Our record in the words of Harbor's result."""

from collections.abc import Sequence
from typing import Any

from seatrial_api.trajectory import TokenSequence, Turn


def rollout_details(sequences: Sequence[TokenSequence], turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Harbor's `RolloutDetail` for each token sequence.

    Harbor repeats the whole prompt for every turn, so this grows with the square of the conversation: for users of
    Harbor's own result files, never for training.
    """
    return [_detail(sequence, [t for t in turns if t.sequence == index]) for index, sequence in enumerate(sequences)]


def _detail(sequence: TokenSequence, turns: Sequence[Turn]) -> dict[str, Any]:
    return {
        "prompt_token_ids": [sequence.token_ids[: turn.start] for turn in turns],
        "completion_token_ids": [sequence.token_ids[turn.start : turn.stop] for turn in turns],
        "logprobs": [sequence.logprobs[turn.start : turn.stop] for turn in turns],
        "extra": {"weight_versions": [sequence.weight_versions[turn.start : turn.stop] for turn in turns]},
    }
