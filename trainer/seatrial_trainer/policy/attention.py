"""Causal attention over a pack in which each sequence sees itself alone."""

from typing import Any

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
    results = []
    first = num_path - num_own
    for block in torch.split(query, _BLOCK, dim=2):
        last = first + block.shape[2]
        start = 0 if window is None else max(0, first - window + 1)
        distance = torch.arange(first, last, device=key.device)[:, None] - torch.arange(start, last, device=key.device)
        is_seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        attend = _by_products if by_products else _masked
        results.append(attend(block, key[:, :, start:last], value[:, :, start:last], is_seen, scaling))
        first = last
    return torch.cat(results, dim=2)


def _masked(query: Tensor, key: Tensor, value: Tensor, is_seen: Tensor, scaling: float | None) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=is_seen, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _is_faster_by_products(query: Tensor, num_path: int) -> bool:
    """A CPU multiplies 16-bit matrices several times faster than its flash kernel does, but keeps all the scores."""
    num_scores = query.shape[1] * query.shape[2] * num_path
    return not query.is_cuda and query.dtype == torch.bfloat16 and num_scores <= _MAX_SCORES


def _by_products(query: Tensor, key: Tensor, value: Tensor, is_seen: Tensor, scaling: float | None) -> Tensor:
    """Softmax of the scores times the values, the heads that share keys multiplied as one."""
    _, heads, num_queries, size = query.shape
    grouped = query.reshape(1, key.shape[1], -1, size) * (size**-0.5 if scaling is None else scaling)
    scores = (grouped @ key.transpose(2, 3)).view(1, heads, num_queries, -1)
    bias = torch.zeros(is_seen.shape, dtype=scores.dtype, device=scores.device).masked_fill_(~is_seen, -torch.inf)
    weights = (scores + bias).softmax(-1)
    return (weights.view(1, key.shape[1], -1, key.shape[2]) @ value).view(1, heads, num_queries, -1)
