"""How the sender's bytes travel: gloo over sockets, NCCL between GPUs."""

import socket
from collections.abc import Iterator
from typing import Any, Literal, Protocol, override

import torch

from seatrial_rollout.engine.gloo import GlooGroup, GlooStore
from seatrial_rollout.engine.tensors import TransferPlan, digest, new_bucket, views

type TransportName = Literal["gloo", "nccl"]
type Weights = Iterator[tuple[str, torch.Tensor]]


class Transport(Protocol):
    """One group of the sender, as rank 0, with the engines' workers."""

    @property
    def port(self) -> int:
        """Where the group meets on this node."""
        ...

    def connect(self, world_size: int, timeout_seconds: float) -> None:
        """Wait until the other ranks have come."""
        ...

    def send(self, weights: Weights, plan: TransferPlan, *, with_digests: bool) -> list[str]:
        """Broadcast the weights; SHA-256 digests of the buckets if asked for."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


def open_transport(name: TransportName, address: str, timeout_seconds: float) -> Transport:
    """A place to meet on this node's `address`."""
    return GlooTransport(address, timeout_seconds) if name == "gloo" else NcclTransport(address)


class GlooTransport(Transport):
    """Buckets of bytes over sockets."""

    def __init__(self, address: str, timeout_seconds: float) -> None:
        self._store = GlooStore(address, timeout_seconds)
        self._group: GlooGroup | None = None

    @property
    @override
    def port(self) -> int:
        return self._store.port

    @override
    def connect(self, world_size: int, timeout_seconds: float) -> None:
        self._group = GlooGroup(
            self._store.store,
            host=self._store.address,
            rank=0,
            world_size=world_size,
            timeout_seconds=timeout_seconds,
        )

    @override
    def send(self, weights: Weights, plan: TransferPlan, *, with_digests: bool) -> list[str]:
        if self._group is None:
            raise RuntimeError("send needs a group: call connect first")
        digests = []
        for specs in plan.buckets():
            bucket = new_bucket(specs)
            for name, target in views(bucket, specs):
                sent_name, tensor = next(weights)
                if sent_name != name:
                    raise RuntimeError(f"the export changed: {sent_name} came where {name} was")
                target.copy_(tensor)
            if with_digests:
                digests.append(digest(bucket))
            self._group.broadcast(bucket)
        return digests

    @override
    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


class NcclTransport(Transport):
    """vLLM's own packed broadcast between GPUs; engines run vLLM's own receiver."""

    def __init__(self, address: str) -> None:
        self._address = address
        with socket.socket() as probe:  # vLLM's rendezvous wants a port that is known before it listens
            probe.bind((address, 0))
            self._port: int = probe.getsockname()[1]
        self._group: Any = None

    @property
    @override
    def port(self) -> int:
        return self._port

    @override
    def connect(self, world_size: int, timeout_seconds: float) -> None:
        from vllm.distributed.weight_transfer.nccl_common import trainer_init  # noqa: PLC0415  only where GPUs are

        place = {"master_address": self._address, "master_port": self._port, "world_size": world_size}
        self._group = trainer_init(place)

    @override
    def send(self, weights: Weights, plan: TransferPlan, *, with_digests: bool) -> list[str]:
        from vllm.distributed.weight_transfer import packed_tensor  # noqa: PLC0415  only where GPUs are

        packed_tensor.packed_nccl_broadcast_producer(
            iterator=weights,
            group=self._group,
            src=0,
            post_iter_func=lambda item: item[1].cuda(),
            buffer_size_bytes=packed_tensor.DEFAULT_PACKED_BUFFER_SIZE_BYTES,
            num_buffers=packed_tensor.DEFAULT_PACKED_NUM_BUFFERS,
        )
        torch.cuda.current_stream().synchronize()
        return []

    @override
    def close(self) -> None:
        if self._group is not None:
            self._group.destroy()
        self._group = None
