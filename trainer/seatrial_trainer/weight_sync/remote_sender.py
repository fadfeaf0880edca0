"""The sender as the driver sees it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, override

from ray.exceptions import RayTaskError

from seatrial_api.errors import TransientError
from seatrial_rollout.engine.errors import WeightUpdateError
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.sender import Sent
from seatrial_trainer.weight_sync.transport import TransportName

_MARGIN_SECONDS = 10.0
"""For a rank to notice its own deadline and say so."""


class SendError(TransientError):
    """A group did not come about, or broke during a transfer, or a rank does not answer."""


class Sender(Protocol):
    """A `WeightSender` on every policy rank. Methods raise `SendError` when engines are gone or the time is up."""

    async def listen(self, timeout_seconds: float) -> tuple[str, int]:
        """Open the place where a new group meets; its address and port."""
        ...

    async def connect(self, world_size: int, timeout_seconds: float) -> None:
        """Wait until the other ranks have come."""
        ...

    async def describe(self, timeout_seconds: float) -> TransferPlan:
        """What `send` sends."""
        ...

    async def send(self, timeout_seconds: float, *, with_digests: bool) -> Sent:
        """Broadcast the weights of this moment."""
        ...

    async def close(self, timeout_seconds: float) -> None:
        """Leave the group."""
        ...


class RemoteSender(Sender):
    """Calls the policy's rank actors.

    Each actor hosts a `WeightSender` and has two methods: `weight_sender(method, *args, **kwargs)`, which calls it,
    and `node_address()`, the address of its node.
    """

    def __init__(
        self, ranks: Sequence[Any], transport: TransportName = "gloo", *, margin_seconds: float = _MARGIN_SECONDS
    ) -> None:
        self._ranks = ranks
        self._transport = transport
        self._margin_seconds = margin_seconds

    @override
    async def listen(self, timeout_seconds: float) -> tuple[str, int]:
        address: str = await self._answer(0, timeout_seconds, "node_address", self._ranks[0].node_address.remote())
        port: int = await self._call(0, timeout_seconds, "listen", address, timeout_seconds, self._transport)
        return address, port

    @override
    async def connect(self, world_size: int, timeout_seconds: float) -> None:
        await self._call(0, timeout_seconds, "connect", world_size, timeout_seconds)

    @override
    async def describe(self, timeout_seconds: float) -> TransferPlan:
        plan: TransferPlan = await self._call_all(timeout_seconds, "describe")
        return plan

    @override
    async def send(self, timeout_seconds: float, *, with_digests: bool) -> Sent:
        sent: Sent = await self._call_all(timeout_seconds, "send", with_digests=with_digests)
        return sent

    @override
    async def close(self, timeout_seconds: float) -> None:
        await self._call(0, timeout_seconds, "close")

    async def _call_all(self, timeout_seconds: float, method: str, **kwargs: Any) -> Any:
        """Call every rank at once, since exporting is their collective; the answer of rank 0."""
        async with first_failure(), asyncio.TaskGroup() as tasks:
            answers = [
                tasks.create_task(self._call(rank, timeout_seconds, method, **kwargs))
                for rank in range(len(self._ranks))
            ]
        return answers[0].result()

    async def _call(self, rank: int, timeout_seconds: float, method: str, /, *args: Any, **kwargs: Any) -> Any:
        answer = self._ranks[rank].weight_sender.remote(method, *args, **kwargs)
        return await self._answer(rank, timeout_seconds, method, answer)

    async def _answer(self, rank: int, timeout_seconds: float, method: str, answer: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(timeout_seconds + self._margin_seconds):
                return await answer
        except RayTaskError as error:  # a rank that is lost raises something else, which nobody here can mend
            raise SendError(f"{method}: {error.cause}") from error
        except TimeoutError:
            msg = f"{method}: policy rank {rank} did not answer within {timeout_seconds:.0f} s"
            raise SendError(msg) from None


@asynccontextmanager
async def first_failure() -> AsyncIterator[None]:
    """Raise the first transfer error of a task group by itself."""
    try:
        yield
    except* (SendError, WeightUpdateError) as group:
        raise group.exceptions[0] from None
