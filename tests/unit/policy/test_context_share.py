"""Ranks that share a pack's tokens see together what one rank sees alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seatrial_trainer.policy.megatron.context import ContextShare

Lengths = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def shares_of(lengths: list[int], num_ranks: int) -> tuple[list[int], list[ContextShare]]:
    """Lengths with the padding that fills the row, and every rank's part of it."""
    multiple = 2 * num_ranks if num_ranks > 1 else 1
    padding = -sum(lengths) % multiple
    filled = [*lengths, padding] if padding else lengths
    return filled, [ContextShare(rank, num_ranks, sum(filled)) for rank in range(num_ranks)]


def seen_by(share: ContextShare, shares: list[ContextShare], lengths: list[int]) -> dict[int, list[int]]:
    """By place of each of a rank's tokens in the row: the places that it attends to."""
    gathered = np.concatenate([one.places for one in shares])
    plan = share.attention(lengths)
    assert sum(plan.own_lengths) == len(share.places)
    paths = np.arange(share.num_tokens) if plan.token_of_path is None else plan.token_of_path.numpy()
    seen, own = {}, iter(share.places.tolist())
    for num_own, path in zip(plan.own_lengths, np.split(paths, np.cumsum(plan.path_lengths))[:-1], strict=True):
        for number in range(num_own):
            seen[next(own)] = gathered[path[: len(path) - (num_own - 1 - number)]].tolist()
    return seen


@given(Lengths, st.sampled_from([1, 2, 3, 4]))
def test_every_token_is_held_once_and_sees_its_sequence_up_to_itself(lengths: list[int], num_ranks: int) -> None:
    filled, shares = shares_of(lengths, num_ranks)
    ends = np.cumsum(filled)
    expected = {
        place: list(range(end - length, place + 1))
        for length, end in zip(filled, ends.tolist(), strict=True)
        for place in range(end - length, end)
    }
    seen = [seen_by(share, shares, filled) for share in shares]
    assert sum(map(len, seen)) == sum(filled)
    assert {place: places for one in seen for place, places in one.items()} == expected


@given(st.integers(1, 50), st.sampled_from([2, 4, 8]))
def test_ranks_compute_equally_many_scores_of_a_long_sequence(chunk: int, num_ranks: int) -> None:
    _, shares = shares_of([2 * num_ranks * chunk], num_ranks)
    assert len({int((share.places + 1).sum()) for share in shares}) == 1
