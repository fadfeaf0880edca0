"""Which sequences are computed together: packs under a token budget, shared prefixes computed once.

The trials of a group start with the same prompt, and a branch of a trajectory inherits its parent's tokens. In a
causal model the hidden state of a token depends on its prefix alone, so a prefix that sequences share is computed once
and its gradient is the sum of theirs. Sorting the sequences as a dictionary would puts those that share most
side by side; each then takes from the one before it what both begin with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHARE_THAT_PAYS = 0.25
"""Share of its tokens that a sequence has to find in a pack for it to grow past its comfortable size."""


@dataclass(frozen=True, slots=True)
class Member:
    """One sequence of a pack."""

    sequence: int
    """Index of the sequence."""
    num_shared: int
    """Leading tokens that it takes from the member before it."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Sequences that one forward pass computes."""

    members: list[Member]
    num_positions: int
    """Positions that the model's layers compute, padding included."""
    num_padding: int = 0
    """Positions among them that belong to no sequence."""


def plan_shared(sequences: Sequence[list[int]], budget: int, *, comfortable: int | None = None) -> list[Pack]:
    """Packs without padding, in which shared prefixes are computed once.

    Args:
        sequences: Token ids; none is empty.
        budget: Positions of a pack at most; a sequence that alone is longer gets a pack of its own.
        comfortable: Size past which a pack is slower, as on a CPU; there it takes only sequences that share enough of
            it to pay for that. The budget if none.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    packs: list[Pack] = []
    members: list[Member] = []
    num_positions = 0
    for index in sorted(range(len(sequences)), key=lambda i: sequences[i]):
        length = len(sequences[index])
        shared = _num_shared(arrays[members[-1].sequence], arrays[index]) if members else 0
        grown = num_positions + length - shared
        is_uncomfortable = comfortable is not None and grown > comfortable and shared < SHARE_THAT_PAYS * length
        if members and (grown > budget or is_uncomfortable):
            packs.append(Pack(members, num_positions))
            members, num_positions, shared = [], 0, 0
        members.append(Member(index, shared))
        num_positions += length - shared
    return [*packs, Pack(members, num_positions)] if members else []


def plan_packed(sequences: Sequence[list[int]], budget: int) -> list[Pack]:
    """Packs without padding in which nothing is shared, for attention that knows only where sequences begin and end.

    Args:
        sequences: Token ids; none is empty.
        budget: Positions of a pack at most; a sequence that alone is longer gets a pack of its own.
    """
    packs: list[Pack] = []
    for index in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
        length = len(sequences[index])
        place = next((i for i, pack in enumerate(packs) if pack.num_positions + length <= budget), None)
        if place is None:
            packs.append(Pack([Member(index, 0)], length))
        else:
            packs[place] = Pack([*packs[place].members, Member(index, 0)], packs[place].num_positions + length)
    return packs


def plan_padded(sequences: Sequence[list[int]], budget: int) -> list[Pack]:
    """Packs of sequences of like length, each padded to the longest of its pack.

    For models that can't be told where a sequence ends within a row, such as those with recurrent layers.

    Args:
        sequences: Token ids; none is empty.
        budget: Positions of a pack at most; a sequence that alone is longer gets a pack of its own.
    """
    lengths = [len(sequence) for sequence in sequences]
    packs: list[Pack] = []
    row: list[int] = []
    for index in sorted(range(len(sequences)), key=lambda i: -lengths[i]):
        if row and (len(row) + 1) * lengths[row[0]] > budget:
            packs.append(_padded_pack(row, lengths))
            row = []
        row.append(index)
    return [*packs, _padded_pack(row, lengths)] if row else []


def share_of_rank(packs: Sequence[Pack], rank: int, num_ranks: int) -> list[Pack]:
    """The packs that one rank computes: the largest first, each to the rank with the least work so far."""
    loads = [0] * num_ranks
    share = []
    for pack in sorted(packs, key=lambda pack: -pack.num_positions):
        owner = loads.index(min(loads))
        loads[owner] += pack.num_positions
        if owner == rank:
            share.append(pack)
    return share


def _padded_pack(row: list[int], lengths: list[int]) -> Pack:
    num_positions = len(row) * lengths[row[0]]
    return Pack([Member(index, 0) for index in row], num_positions, num_positions - sum(lengths[i] for i in row))


def _num_shared(a: np.ndarray, b: np.ndarray) -> int:
    shorter = min(len(a), len(b))
    differs = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differs[0]) if len(differs) else shorter
