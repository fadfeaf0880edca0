"""Causal attention over a pack in which each sequence sees itself alone."""

from typing import Any, override

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from torch import Tensor, nn

from seatrial_trainer.policy.layout import AttentionPlan

PACKED_ATTENTION = "seatrial_packed"
"""Name under which transformers knows this function."""

_BLOCK = 256
"""Queries that are masked together; a mask covers keys that some of them must not see, so it should be small."""

_MAX_SCORES = 1 << 24
"""Scores of one sequence and layer that may be kept for the backward pass: 32 MiB in 16 bits."""

_OTHER_KINDS = ("softcap", "s_aux", "position_bias")
"""Options of models whose attention is more than a scaled softmax: capped scores, sinks, learned biases."""


def register() -> None:
    """Make the function known to transformers; safe to repeat."""
    from transformers import AttentionInterface  # noqa: PLC0415  heavy, and only a policy rank needs it

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def packed_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    attention_plan: AttentionPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **model_options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: queries, keys and values of shape (1, heads, tokens, head size).

    Raises:
        TypeError: the model wants a kind of attention that this is not.
    """
    if wanted := [name for name in _OTHER_KINDS if model_options.get(name) is not None]:
        msg = f"packed attention has no {', '.join(wanted)}"
        raise TypeError(msg)
    plan = attention_plan
    if plan.token_of_path is not None:
        key, value = (x.index_select(2, plan.token_of_path) for x in (key, value))
    if query.is_cuda and query.dtype != torch.float32 and key.shape[-1] == value.shape[-1] <= 256:
        return _in_one_kernel(query, key, value, plan, scaling, sliding_window), None
    rows = zip(
        torch.split(query, plan.own_lengths, dim=2),
        torch.split(key, plan.path_lengths, dim=2),
        torch.split(value, plan.path_lengths, dim=2),
        strict=True,
    )
    results = [_one_sequence(*row, scaling, sliding_window) for row in rows if row[0].shape[2]]
    return torch.cat(results, dim=2).transpose(1, 2), None


def _in_one_kernel(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float | None, window: int | None
) -> Tensor:
    """All sequences at once by the variable-length flash kernel, which aligns the last query with the last key."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  only on a GPU

    own, path = (boundary.to(query.device) for boundary in plan.boundaries())
    result: Tensor = varlen_attn(  # type: ignore[assignment]  # a pair only where more is asked for
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        own,
        path,
        max(plan.own_lengths),
        max(plan.path_lengths),
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return result[None]


def _one_sequence(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    """Attention from a sequence's last tokens, as many as there are queries, to all of it."""
    num_own, num_path = query.shape[2], key.shape[2]
    by_products = _is_faster_by_products(query, num_path)
    if num_own == num_path and (window is None or window >= num_path) and not by_products:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
    attend = _attend_by_products if by_products else _attend_masked
    results = []
    first = num_path - num_own
    for block in torch.split(query, _BLOCK, dim=2):
        start = 0 if window is None else max(0, first - window + 1)
        last = first + block.shape[2]
        results.append(attend(block, key[:, :, start:last], value[:, :, start:last], scaling, window))
        first = last
    return torch.cat(results, dim=2)


def _attend_masked(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    is_seen = _is_seen(query.shape[2], key.shape[2], window, key.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=is_seen, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _is_seen(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Which of the keys each query sees, the last query being that of the last key."""
    keys = torch.arange(num_keys, device=device)
    distance = keys[num_keys - num_queries :, None] - keys
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def _is_faster_by_products(query: Tensor, num_path: int) -> bool:
    """A CPU multiplies 16-bit matrices several times faster than its flash kernel does, but keeps all the scores."""
    num_scores = query.shape[1] * query.shape[2] * num_path
    return not query.is_cuda and query.dtype == torch.bfloat16 and num_scores <= _MAX_SCORES


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    _, heads, num_queries, size = query.shape
    scaled = query * (size**-0.5 if scaling is None else scaling)
    grouped = scaled.reshape(key.shape[1], -1, size)
    # Without a window the keys before the first query are seen by all of the block.
    is_seen = _is_seen(num_queries, num_queries if window is None else key.shape[2], window, key.device)
    result: Tensor = _SoftmaxOfProducts.apply(grouped, key[0], value[0], is_seen)  # type: ignore[no-untyped-call]
    return result.view(1, heads, num_queries, -1)


class _SoftmaxOfProducts(torch.autograd.Function):
    """Softmax of the scores times the values, the heads that share keys multiplied as one.

    By hand, since autograd would write all scores anew for their mask, and once more on the way back, where weights
    of zero have no gradient anyway.
    """

    @staticmethod
    @override
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, is_seen: Tensor) -> Tensor:
        """Queries of shape (key heads, query heads of each times queries, size); a mask of the last keys, by query."""
        scores = query @ key.transpose(1, 2)
        num_queries, num_masked = is_seen.shape
        by_query = scores.view(len(scores), -1, num_queries, scores.shape[2])
        by_query[..., -num_masked:].masked_fill_(~is_seen, -torch.inf)
        weights = scores.softmax(-1)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights = ctx.saved_tensors
        of_weights = gradient @ value.transpose(1, 2)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)  # noqa: SLF001  its only name
        of_value = weights.transpose(1, 2) @ gradient
        return of_scores @ key, of_scores.transpose(1, 2) @ query, of_value, None
