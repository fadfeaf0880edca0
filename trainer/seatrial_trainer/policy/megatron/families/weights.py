"""How a weight of megatron-core is made of weights of a Hugging Face model, and cut over tensor-parallel ranks."""

from dataclasses import dataclass
from typing import Protocol, override

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a model."""

    num_query: int
    num_key: int
    is_gated: bool = False
    """Whether each query comes with a gate of its size, behind it in the same weight."""


class Weight(Protocol):
    """One weight of megatron-core."""

    names: tuple[str, ...]
    """The Hugging Face weights that it is made of."""
    expert: int | None = None
    """Which of the experts that these hold together, first dimension; none where they are of nothing else."""

    def join(self, parts: list[Tensor], rank: int, num_ranks: int) -> Tensor:
        """One tensor-parallel rank's share, from the whole Hugging Face weights."""
        ...

    def part(self, shares: list[Tensor]) -> list[Tensor]:
        """The whole Hugging Face weights, from the shares of all tensor-parallel ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Whole(Weight):
    """The same on every rank, such as a norm or a router."""

    names: tuple[str, ...]

    @override
    def join(self, parts: list[Tensor], rank: int, num_ranks: int) -> Tensor:
        return parts[0]

    @override
    def part(self, shares: list[Tensor]) -> list[Tensor]:
        return [shares[0]]


@dataclass(frozen=True, slots=True)
class Cut(Weight):
    """Cut along one dimension; `gate_proj` and `up_proj` are each cut and then stand one over the other."""

    names: tuple[str, ...]
    dim: int = 0
    expert: int | None = None

    @override
    def join(self, parts: list[Tensor], rank: int, num_ranks: int) -> Tensor:
        return torch.cat([part.chunk(num_ranks, self.dim)[rank] for part in parts], self.dim)

    @override
    def part(self, shares: list[Tensor]) -> list[Tensor]:
        pieces = [share.chunk(len(self.names), self.dim) for share in shares]
        return [torch.cat(piece, self.dim) for piece in zip(*pieces, strict=True)]


@dataclass(frozen=True, slots=True)
class Blocks(Weight):
    """Weights that are several themselves, one over the other; each block is cut by itself."""

    names: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    """Of the blocks of each Hugging Face weight."""
    expert: int | None = None

    @override
    def join(self, parts: list[Tensor], rank: int, num_ranks: int) -> Tensor:
        blocks = [block for part, rows in zip(parts, self.rows, strict=True) for block in torch.split(part, list(rows))]
        return torch.cat([block.chunk(num_ranks)[rank] for block in blocks])

    @override
    def part(self, shares: list[Tensor]) -> list[Tensor]:
        own_rows = [count // len(shares) for rows in self.rows for count in rows]
        blocks = iter(
            [torch.cat(block) for block in zip(*(torch.split(share, own_rows) for share in shares), strict=True)]
        )
        return [torch.cat([next(blocks) for _ in rows]) for rows in self.rows]


@dataclass(frozen=True, slots=True)
class Vocabulary(Weight):
    """Rows of tokens; the last ranks hold rows of zeros where the vocabulary does not divide."""

    names: tuple[str, ...]
    size: int
    """Tokens of the vocabulary."""

    @override
    def join(self, parts: list[Tensor], rank: int, num_ranks: int) -> Tensor:
        rows = -(-self.size // num_ranks)
        own = parts[0][rank * rows : (rank + 1) * rows]
        return torch.nn.functional.pad(own, (0, 0, 0, rows - len(own)))

    @override
    def part(self, shares: list[Tensor]) -> list[Tensor]:
        return [torch.cat(shares)[: self.size]]


@dataclass(frozen=True, slots=True)
class QueryKeyValue(Weight):
    """Queries, keys and values, which megatron-core keeps group by group: the queries that share a key, then it.

    Gates of queries stand between the group's queries and its key. Ranks may be more than groups.
    """

    names: tuple[str, ...]
    heads: Heads

    @override
    def join(self, parts: list[Tensor], rank: int, num_ranks: int) -> Tensor:
        query, *rest = (torch.unflatten(part, 0, (self.heads.num_key, -1)) for part in parts)
        if self.heads.is_gated:
            query = self._by_head(query, self.heads.num_query // self.heads.num_key, 2)
        return torch.cat([query, *rest], 1).flatten(0, 1).chunk(num_ranks)[rank]

    @override
    def part(self, shares: list[Tensor]) -> list[Tensor]:
        num_queries = self.heads.num_query // self.heads.num_key * (2 if self.heads.is_gated else 1)
        groups = torch.unflatten(torch.cat(shares), 0, (self.heads.num_key, -1))
        size = groups.shape[1] // (num_queries + 2)
        query, *rest = torch.split(groups, [num_queries * size, size, size], 1)
        if self.heads.is_gated:
            query = self._by_head(query, 2, num_queries // 2)
        return [part.flatten(0, 1) for part in (query, *rest)]

    def _by_head(self, query: Tensor, outer: int, inner: int) -> Tensor:
        """Exchange the order of heads and of what each has, a query and a gate."""
        return torch.unflatten(query, 1, (outer, inner, -1)).transpose(1, 2).flatten(1, 3)
