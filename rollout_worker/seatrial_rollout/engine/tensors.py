"""How named tensors travel: in buckets of bytes, cut alike on both sides from the same list."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch

BUCKET_BYTES = 64 * 1024**2
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What the other side has to know of a tensor before it comes."""

    name: str
    """Hugging Face name."""
    dtype: str
    """`float32`, `bfloat16`, ..."""
    shape: list[int]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "TensorSpec":
        """Describe a tensor."""
        return cls(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the data alone."""
        return prod(self.shape) * self.torch_dtype.itemsize

    @property
    def padded_bytes(self) -> int:
        """Bytes in a bucket, so that the next tensor starts aligned."""
        return -(-self.num_bytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What comes in a transfer, in order."""

    tensors: list[TensorSpec]
    bucket_bytes: int = BUCKET_BYTES
    """Most bytes in a bucket; a larger tensor gets one of its own."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.num_bytes for spec in self.tensors)

    def buckets(self) -> Iterator[list[TensorSpec]]:
        """Cut the tensors into buckets, each of which is one collective."""
        bucket: list[TensorSpec] = []
        size = 0
        for spec in self.tensors:
            if bucket and size + spec.padded_bytes > self.bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(spec)
            size += spec.padded_bytes
        if bucket:
            yield bucket

    def to_wire(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> "TransferPlan":
        """Read what `to_wire` made."""
        return cls([TensorSpec(**tensor) for tensor in wire["tensors"]], wire["bucket_bytes"])


def new_bucket(specs: Sequence[TensorSpec]) -> torch.Tensor:
    """Memory for a bucket."""
    return torch.zeros(sum(spec.padded_bytes for spec in specs), dtype=torch.uint8)


def views(bucket: torch.Tensor, specs: Sequence[TensorSpec]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a bucket, sharing its memory."""
    offset = 0
    for spec in specs:
        data = bucket[offset : offset + spec.num_bytes]
        yield spec.name, data.view(spec.torch_dtype).view(spec.shape)
        offset += spec.padded_bytes


def digest(bucket: torch.Tensor) -> str:
    """SHA-256 of a bucket's bytes."""
    return hashlib.sha256(bucket.numpy()).hexdigest()
