"""The ranks of a policy, how they meet, and the figures that they exchange."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore


def open_store(host: str, *, timeout_seconds: float) -> TCPStore:
    """Listen on a port that the system chooses; the store's `port` tells which."""
    timeout = timedelta(seconds=timeout_seconds)
    return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)


def connect_store(host: str, port: int, *, timeout_seconds: float) -> TCPStore:
    """Reach the store that another rank opened."""
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_seconds))


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank among its peers; alone, every exchange is the identity."""

    rank: int = 0
    count: int = 1
    beside: dist.ProcessGroup | None = None
    """For exchanges of a thread beside training, on the host: those of one group must come in the same order on all."""

    @classmethod
    def join(cls, rank: int, count: int, store: TCPStore, *, timeout_seconds: float) -> "Ranks":
        """Form the process group; returns once all ranks have joined.

        Args:
            rank: This process among `count`.
            count: Number of ranks.
            store: Where they meet: `open_store` on one of them, `connect_store` on the others.
            timeout_seconds: Deadline of this call and of every later exchange.
        """
        timeout = timedelta(seconds=timeout_seconds)
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo", store=store, rank=rank, world_size=count, timeout=timeout
        )
        return cls(rank, count, dist.new_group(backend="gloo", timeout=timeout))

    def sum_(self, tensor: Tensor) -> None:
        """Add the tensor up over all ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)

    def max_(self, tensor: Tensor) -> None:
        """Take the largest over all ranks, element by element, in place."""
        if self.count > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    def gather(self, value: Any) -> list[Any]:
        """One picklable value of each rank, in their order."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def leave(self) -> None:
        """Dissolve the process group."""
        if self.count > 1:
            dist.destroy_process_group()
