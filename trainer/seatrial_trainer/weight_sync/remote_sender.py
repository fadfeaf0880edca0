"""The sender as the driver sees it."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, override

from ray.exceptions import RayTaskError

from seatrial_api.errors import TransientError
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.sender import Sent
from seatrial_trainer.weight_sync.transport import TransportName


class SendError(TransientError):
    """A group did not come about, or broke during a transfer."""


class Sender(Protocol):
    """A `WeightSender` on every policy rank. Methods raise `SendError` when engines are gone or the time is up."""

    async def listen(self, timeout_seconds: float) -> tuple[str, int]:
        """Open the place where a new group meets; its address and port."""
        ...

    async def connect(self, world_size: int, timeout_seconds: float) -> None:
        """Wait until the other ranks have come."""
        ...

    async def describe(self) -> TransferPlan:
        """What `send` sends."""
        ...

    async def send(self, *, with_digests: bool) -> Sent:
        """Broadcast the weights of this moment."""
        ...

    async def close(self) -> None:
        """Leave the group."""
        ...


class RemoteSender(Sender):
    """Calls the policy's rank actors.

    Each actor hosts a `WeightSender` and has two methods: `weight_sender(method, *args, **kwargs)`, which calls it,
    and `node_address()`, the address of its node.
    """

    def __init__(self, ranks: Sequence[Any], transport: TransportName = "gloo") -> None:
        self._ranks = ranks
        self._transport = transport

    @override
    async def listen(self, timeout_seconds: float) -> tuple[str, int]:
        address: str = await self._ranks[0].node_address.remote()
        port: int = await _call(self._ranks[0], "listen", address, timeout_seconds, self._transport)
        return address, port

    @override
    async def connect(self, world_size: int, timeout_seconds: float) -> None:
        await _call(self._ranks[0], "connect", world_size, timeout_seconds)

    @override
    async def describe(self) -> TransferPlan:
        plan: TransferPlan = await self._call_all("describe")
        return plan

    @override
    async def send(self, *, with_digests: bool) -> Sent:
        sent: Sent = await self._call_all("send", with_digests=with_digests)
        return sent

    @override
    async def close(self) -> None:
        await _call(self._ranks[0], "close")

    async def _call_all(self, method: str, **kwargs: Any) -> Any:
        """Call every rank at once, since exporting is their collective; the answer of rank 0."""
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_call(rank, method, **kwargs)) for rank in self._ranks]
        return answers[0].result()


async def _call(rank: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return await rank.weight_sender.remote(method, *args, **kwargs)
    except RayTaskError as error:  # a rank that is lost raises something else, which nobody here can mend
        raise SendError(f"{method}: {error.cause}") from error
