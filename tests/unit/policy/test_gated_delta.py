"""Gated DeltaNet's two mixers, packed, against their formulas for one sequence after another."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seatrial_trainer.policy.gated_delta import causal_conv1d, chunk_gated_delta_rule

LENGTHS = [
    pytest.param([5, 1, 130, 64, 70, 3], id="shorter, equal and longer than chunks"),
    pytest.param([1, 1, 1], id="single tokens"),
    pytest.param([200], id="alone"),
]
HEADS, KEY_SIZE, VALUE_SIZE, CHANNELS, WIDTH = 2, 4, 6, 5, 4


def boundaries(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def inputs(num_tokens: int) -> list[Tensor]:
    """Queries, normalised keys, values, decays and how much is written."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, num_tokens, HEADS, KEY_SIZE) for _ in range(2))
    value = torch.randn(1, num_tokens, HEADS, VALUE_SIZE)
    decay, write = -3 * torch.rand(1, num_tokens, HEADS), torch.rand(1, num_tokens, HEADS)
    return [x.requires_grad_() for x in (query, torch.nn.functional.normalize(key, dim=-1), value, decay, write)]


def token_by_token(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor) -> Tensor:
    """The rule as it is written down."""
    state = torch.zeros(HEADS, KEY_SIZE, VALUE_SIZE)
    results = []
    for t in range(query.shape[1]):
        q, k, v = query[0, t], key[0, t], value[0, t]
        state = decay[0, t].exp()[:, None, None] * state
        difference = v - torch.einsum("hk,hkv->hv", k, state)
        state = state + torch.einsum("h,hk,hv->hkv", write[0, t], k, difference)
        results.append(torch.einsum("hk,hkv->hv", q, state) / KEY_SIZE**0.5)
    return torch.stack(results)[None]


def one_after_another(of_one: Callable[..., Tensor], lengths: list[int], *rows: Tensor) -> Tensor:
    spans = pairwise(boundaries(lengths).tolist())
    return torch.cat([of_one(*(row[:, start:stop] for row in rows)) for start, stop in spans], 1)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_packed_recurrences_and_their_gradients_are_those_of_sequences_alone(lengths: list[int]) -> None:
    rows = inputs(sum(lengths))
    packed, _ = chunk_gated_delta_rule(*rows[:3], g=rows[3], beta=rows[4], cu_seqlens=boundaries(lengths))
    alone = one_after_another(token_by_token, lengths, *rows)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)

    weights = torch.randn_like(packed)
    ours, theirs = (torch.autograd.grad((result * weights).sum(), rows) for result in (packed, alone))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_packed_convolutions_and_their_gradients_are_those_of_sequences_alone(lengths: list[int]) -> None:
    torch.manual_seed(0)
    row = torch.randn(1, sum(lengths), CHANNELS, requires_grad=True)
    weight = torch.randn(CHANNELS, WIDTH, requires_grad=True)

    def convolved(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x.mT, (WIDTH - 1, 0))
        return torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight[:, None], groups=CHANNELS)).mT

    packed, _ = causal_conv1d(row, weight, cu_seqlens=boundaries(lengths), activation="silu")
    alone = one_after_another(convolved, lengths, row)
    torch.testing.assert_close(packed, alone)

    ours, theirs = (torch.autograd.grad(result.square().sum(), (row, weight)) for result in (packed, alone))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
