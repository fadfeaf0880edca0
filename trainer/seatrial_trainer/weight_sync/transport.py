"""How the sender's bytes travel: gloo over sockets, NCCL between GPUs."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
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
    """vLLM's own packed broadcast between GPUs; engines run vLLM's own receiver.

    NCCL waits for ever for a peer that is gone, and without an error. So a transfer that is not done within the group's
    timeout is aborted from a thread beside it, which frees what waits on the GPU.
    """

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, 0))
        self._address = address
        self._port: int = self._listener.getsockname()[1]
        self._group: AbortableGroup | None = None
        self._timeout_seconds = 0.0

    @property
    @override
    def port(self) -> int:
        return self._port

    @override
    def connect(self, world_size: int, timeout_seconds: float) -> None:
        # As vLLM's `trainer_init`, which takes neither a deadline nor a socket that listens already.
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator  # noqa: PLC0415  only where GPUs are
        from vllm.distributed.utils import StatelessProcessGroup  # noqa: PLC0415  as above
        from vllm.utils.nccl import unpinned_nccl_env  # noqa: PLC0415  as above

        meeting = StatelessProcessGroup.create(
            host=self._address,
            port=self._port,
            rank=0,
            world_size=world_size,
            store_timeout=ceil(timeout_seconds),
            listen_socket=self._listener,
        )
        with unpinned_nccl_env():
            communicator = PyNcclCommunicator(meeting, device=torch.accelerator.current_device_index())
        if communicator.disabled:
            raise RuntimeError("vLLM found no NCCL here, and would send nothing without saying so")
        self._group = AbortableGroup(communicator)
        self._timeout_seconds = timeout_seconds

    @override
    def send(self, weights: Weights, plan: TransferPlan, *, with_digests: bool) -> list[str]:
        if self._group is None:
            raise RuntimeError("send needs a group: call connect first")
        from vllm.distributed.weight_transfer import packed_tensor  # noqa: PLC0415  only where GPUs are

        # The producer reads on streams of its own, which do not wait for the optimiser step on this one.
        torch.accelerator.synchronize()
        group = self._group
        with group.bounded(self._timeout_seconds):
            packed_tensor.packed_nccl_broadcast_producer(
                iterator=weights,
                group=group,
                src=0,
                post_iter_func=lambda item: item[1].to(group.device),
                buffer_size_bytes=plan.bucket_bytes,
            )
        return []

    @override
    def close(self) -> None:
        self._listener.close()
        if self._group is not None:
            self._group.abort()
        self._group = None


class AbortableGroup:
    """A communicator of vLLM's that raises once it was aborted; by itself it would go on and send nothing."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._is_aborted = False

    @property
    def device(self) -> torch.device:
        """Where tensors have to be."""
        device: torch.device = self._communicator.device
        return device

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Send to all others; returns before it is done.

        Raises:
            RuntimeError: the group was aborted.
        """
        self._check()
        self._communicator.broadcast(tensor, src=src)

    def abort(self) -> None:
        """End what waits in the group, from whatever thread. Idempotent."""
        self._is_aborted = True  # first: what is freed by the abort must not enter the group again
        self._communicator.destroy()

    @contextmanager
    def bounded(self, timeout_seconds: float) -> Iterator[None]:
        """Abort the group if the block is not done in time.

        Raises:
            RuntimeError: it was not.
        """
        timer = threading.Timer(timeout_seconds, self.abort)
        timer.start()
        try:
            yield
            self._check()
        finally:
            timer.cancel()

    def _check(self) -> None:
        if self._is_aborted:
            raise RuntimeError("the group was aborted: the engines did not take the weights in time")
