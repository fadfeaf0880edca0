"""Gated DeltaNet's two mixers over packed sequences, in plain torch: a short convolution and a delta-rule recurrence.

They are called as flash-linear-attention's kernels are, which do the same on a GPU. What a sequence leaves behind, the
convolution's last inputs and the recurrent state, never reaches the next one of the pack.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from torch import Tensor

_CHUNK = 64
"""Tokens that are solved together; the recurrence steps from chunk to chunk."""


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Vectors along the last dimension, scaled to length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    **_states: object,
) -> tuple[Tensor, None]:
    """Each channel's sum over its last few inputs of the same sequence.

    Args:
        x: Shape (1, tokens, channels).
        weight: Shape (channels, width); the last column is the token itself.
        bias: Shape (channels,).
        cu_seqlens: Boundaries of the sequences.
        activation: `silu`, or none.
        **_states: What flash-linear-attention takes to begin or end within a sequence.
    """
    width = weight.shape[1]
    starts = torch.repeat_interleave(cu_seqlens[:-1], torch.diff(cu_seqlens))
    position = torch.arange(x.shape[1], device=x.device) - starts
    total = x.float() * weight[:, -1]
    for back in range(1, width):
        earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]].masked_fill((position < back)[:, None], 0.0)
        total = total + earlier.float() * weight[:, -1 - back]
    if bias is not None:
        total = total + bias
    return (F.silu(total) if activation else total).to(x.dtype), None


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Chunks of all sequences, first chunks first; the sequence with most chunks is the first of each step."""

    token: Tensor
    """Token at each place, shape (chunks, size); any token where a sequence has ended."""
    is_token: Tensor
    num_chunks: list[int]
    """Sequences that still have a chunk, step by step."""

    @classmethod
    def of(cls, cu_seqlens: Tensor) -> Self:
        bounds = cu_seqlens.cpu().numpy().astype(np.int64)
        lengths = np.diff(bounds)
        size = int(min(_CHUNK, lengths.max()))
        counts = -(-lengths // size)
        order = np.argsort(-counts, kind="stable")
        starts, ends, counts = bounds[:-1][order], bounds[1:][order], counts[order]
        active = [int((counts > step).sum()) for step in range(counts[0])]
        token = np.concatenate([starts[:n] + step * size for step, n in enumerate(active)])[:, None] + np.arange(size)
        is_token = token < np.concatenate([ends[:n] for n in active])[:, None]
        device = cu_seqlens.device
        return cls(
            torch.from_numpy(np.where(is_token, token, 0)).to(device), torch.from_numpy(is_token).to(device), active
        )

    def cut(self, x: Tensor) -> Tensor:
        """From (tokens, heads, ...) to (chunks, heads, size, ...), in 32 bits, with zeros where there is no token."""
        cut = x.float()[self.token]
        mask = self.is_token.view(*self.is_token.shape, *[1] * (x.dim() - 1))
        return (cut * mask).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """The way back, for shape (chunks, heads, size, values)."""
        found, token = x.transpose(1, 2)[self.is_token], self.token[self.is_token]
        return torch.zeros_like(found).index_copy(0, token, found)


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, beta: Tensor, cu_seqlens: Tensor, **_states: object
) -> tuple[Tensor, None]:
    """The gated delta rule, chunk by chunk (Yang et al., arXiv 2412.06464, section 3.3), in 32 bits.

    Token by token, from S = 0 at each sequence's start, it is
    `S = exp(g) S; S = S + beta k (v - k S); o = q S / sqrt(key size)`.

    Args:
        q: Queries, shape (1, tokens, heads, key size).
        k: Keys, of the same shape.
        v: Values, shape (1, tokens, heads, value size).
        g: Logarithm of each token's decay, shape (1, tokens, heads), at most 0.
        beta: How much of the difference is written, of the same shape.
        cu_seqlens: Boundaries of the sequences.
        **_states: What flash-linear-attention takes to begin or end within a sequence.
    """
    chunks = _Chunks.of(cu_seqlens)
    query, key, value, decay, write = (chunks.cut(x[0]) for x in (q, k, v, g, beta))
    query = query * q.shape[-1] ** -0.5
    since_start = decay.cumsum(-1)
    between = since_start[..., :, None] - since_start[..., None, :]
    between = between.masked_fill(torch.ones_like(between, dtype=torch.bool).triu(1), -torch.inf).exp()
    from_start, to_end = since_start.exp()[..., None], (since_start[..., -1:] - since_start).exp()[..., None]

    written_key = key * write[..., None]
    system = (written_key @ key.mT) * between
    right = torch.cat([value * write[..., None], written_key * from_start], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_values, read_keys = solved.split([v.shape[-1], k.shape[-1]], -1)
    within, reading, kept = (query @ key.mT) * between, query * from_start, (key * to_end).mT
    whole = from_start[:, :, -1:]

    results, first = [], 0
    state = new_values.new_zeros(chunks.num_chunks[0], *key.shape[1:2], k.shape[-1], v.shape[-1])
    for count in chunks.num_chunks:
        here = slice(first, first + count)
        state, first = state[:count], first + count
        update = new_values[here] - read_keys[here] @ state
        results.append(reading[here] @ state + within[here] @ update)
        state = state * whole[here] + kept[here] @ update
    return chunks.join(torch.cat(results))[None].to(q.dtype), None
