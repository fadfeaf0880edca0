"""A gloo group that stands beside torch's default one: several can live in a process, and each can be thrown away."""

import socket
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore


class GlooStore:
    """The place where a group's ranks meet; the process that holds it is rank 0."""

    def __init__(self, address: str, timeout_seconds: float) -> None:
        self.address = address
        """Address of this node under which the other ranks reach it."""
        self.store = TCPStore(
            address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_seconds)
        )

    @property
    def port(self) -> int:
        """Port that was free."""
        port: int = self.store.port
        return port


class GlooGroup:
    """Broadcasts bytes from rank 0; every call ends within the group's timeout."""

    def __init__(self, store: Store, *, host: str, rank: int, world_size: int, timeout_seconds: float) -> None:
        timeout = timedelta(seconds=timeout_seconds)
        gloo: Any = ProcessGroupGloo  # torch's stubs know only half of it
        options = gloo._Options()  # noqa: SLF001  as below
        options._devices = [gloo.create_device(hostname=host)]  # noqa: SLF001  the only way to name the interface
        options._timeout = timeout  # noqa: SLF001  as above
        self._group: Any = gloo(PrefixStore("weights", store), rank, world_size, options)
        self._timeout = timeout

    @classmethod
    def join(cls, *, address: str, port: int, rank: int, world_size: int, timeout_seconds: float) -> "GlooGroup":
        """Enter a group whose store is elsewhere, as one of its receivers.

        Raises:
            RuntimeError: the ranks did not all come in time.
        """
        timeout = timedelta(seconds=timeout_seconds)
        store = TCPStore(address, port, is_master=False, timeout=timeout)
        host = _own_address_towards(address, port)
        return cls(store, host=host, rank=rank, world_size=world_size, timeout_seconds=timeout_seconds)

    def broadcast(self, data: torch.Tensor) -> None:
        """Send from rank 0 to all others, in place.

        Raises:
            RuntimeError: a rank is gone, or the timeout has passed.
        """
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = self._timeout
        if self._group is None:
            raise RuntimeError("the group was closed")
        self._group.broadcast([data], options).wait(self._timeout)

    def close(self) -> None:
        """Close the connections, which ends a call of another rank too. Idempotent."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()  # what waits raises; the connections close with the last reference


def _own_address_towards(address: str, port: int) -> str:
    """The address of the interface that reaches `address`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))
        host: str = probe.getsockname()[0]
        return host
