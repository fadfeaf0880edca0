from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seatrial_trainer.policy.attention import packed_attention
from seatrial_trainer.policy.layout import AttentionPlan, shared_layout
from seatrial_trainer.policy.packing import plan_shared

HEADS, KV_HEADS, SIZE = 4, 2, 8


def random_tokens(count: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return tuple(  # type: ignore[return-value]  # three by construction
        torch.randn(1, heads, count, SIZE, dtype=torch.float64, generator=generator)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )


def plan_of(sequences: list[list[int]]) -> AttentionPlan:
    import numpy as np  # noqa: PLC0415  only to shape the input

    (pack,) = plan_shared(sequences, budget=10**6)
    predicted = [np.array([len(sequence)]) for sequence in sequences]
    layout = shared_layout(pack, [[*sequence, 0] for sequence in sequences], predicted, torch.device("cpu"))
    assert layout.attention is not None
    return layout.attention


def expected_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, window: int | None) -> Tensor:
    """Each own token over its path, one by one."""
    paths = torch.arange(query.shape[2]) if plan.token_of_path is None else plan.token_of_path
    results, start = [], 0
    for own, path in zip(plan.own_lengths, paths.split(plan.path_lengths), strict=True):  # type: ignore[no-untyped-call]
        for i in range(own):
            seen = path[: len(path) - own + i + 1]
            seen = seen if window is None else seen[-window:]
            keys, values = (x[0, :, seen].repeat_interleave(HEADS // KV_HEADS, 0) for x in (key, value))
            scores = (keys @ query[0, :, start + i, :, None])[..., 0] * 0.3
            results.append((scores.softmax(-1)[..., None] * values).sum(1))
        start += own
    return torch.stack(results)[None]


def found_attention(plan: AttentionPlan, window: int | None, **options: Any) -> tuple[Tensor, Tensor]:
    query, key, value = random_tokens(sum(plan.own_lengths))
    found, _ = packed_attention(
        nn.Identity(), query, key, value, None, attention_plan=plan, scaling=0.3, sliding_window=window, **options
    )
    return found, expected_attention(query, key, value, plan, window)


@settings(max_examples=40)
@given(
    sequences=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=6),
    window=st.one_of(st.none(), st.integers(1, 10)),
)
def test_each_token_sees_its_own_prefix_and_nothing_else(sequences: list[list[int]], window: int | None) -> None:
    found, expected = found_attention(plan_of(sequences), window)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("window", [None, 40])
def test_long_sequences_are_masked_block_by_block(window: int | None) -> None:
    prompt = [0] * 30
    found, expected = found_attention(plan_of([[*prompt, *[1] * 300], [*prompt, *[2] * 530]]), window)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("window", [None, 40])
def test_sixteen_bits_on_a_cpu_are_right_up_to_their_rounding(window: int | None) -> None:
    plan = plan_of([[0] * 30 + [1] * 300, [0] * 30 + [2] * 20])
    exact = [x.requires_grad_() for x in random_tokens(sum(plan.own_lengths))]
    rounded = [x.detach().bfloat16().requires_grad_() for x in exact]
    found, _ = packed_attention(nn.Identity(), *rounded, None, attention_plan=plan, scaling=0.3, sliding_window=window)
    expected = expected_attention(*exact, plan, window)
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0)

    gradient = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found.backward(gradient.bfloat16())
    expected.backward(gradient)
    for found_leaf, leaf in zip(rounded, exact, strict=True):
        assert found_leaf.grad is not None
        assert leaf.grad is not None
        torch.testing.assert_close(found_leaf.grad.double(), leaf.grad, atol=0.05, rtol=0.02)


def test_attention_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="softcap"):
        found_attention(plan_of([[1, 2]]), None, softcap=50.0)
