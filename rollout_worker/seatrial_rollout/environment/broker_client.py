"""Client of the broker: calls that go on while no broker serves, each with the newest token."""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import structlog
from grpc import aio

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.protos.broker_pb2_grpc import SandboxBrokerStub
from seatrial_rollout.environment.broker_access import BrokerAccess
from seatrial_rollout.environment.calls import metadata
from seatrial_sandbox.errors import SandboxStartError

if TYPE_CHECKING:
    from seatrial_api.protos.broker_pb2_grpc import SandboxBrokerAsyncStub  # in the stubs alone

_CALL_SECONDS = 10.0
"""Time for one try at a call that does not wait; another broker may serve by then."""
_ANSWER_SECONDS = 5.0
"""On top of the time that a claim may wait, for its answer to arrive."""
_LEAST_WAIT_SECONDS = 0.1
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0
_REFUSAL_SECONDS = 30.0
"""Time for which a refused token is shown again: an API server that has just started may not know it yet."""
_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""Codes that tell nothing about what was asked for; asking again does."""
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # the broker does not suffer it more often than every 10 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class BrokerClient:
    """Asks whichever broker serves; it holds a connection from the first call to `close`.

    Every call may be sent again: a claim that was answered to nobody is answered again, and the others say how things
    shall be. So a broker that ends in the middle of a call costs time and nothing else.
    """

    access: BrokerAccess
    clock: Clock = SYSTEM_CLOCK
    _channel: aio.Channel | None = field(default=None, init=False)

    async def close(self) -> None:
        """Hang up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def claim(self, request: pb.ClaimRequest, deadline: Deadline) -> pb.ClaimResponse:
        """Ask for a sandbox, for as long as there is time; `deadline_seconds` of the request is set here.

        Raises:
            SandboxStartError: If no broker answers in time, or it does not let this pod in.
        """

        async def send() -> pb.ClaimResponse:
            request.deadline_seconds = max(_LEAST_WAIT_SECONDS, deadline.remaining)
            seconds = request.deadline_seconds + _ANSWER_SECONDS
            return await self._stub.Claim(request, metadata=self._shown, timeout=seconds)

        return await self._persist(send, deadline, f"claiming a sandbox of world {request.world!r}")

    async def renew(self, request: pb.RenewRequest, seconds: float) -> pb.RenewResponse:
        """Keep sandboxes.

        Raises:
            SandboxStartError: As for `claim`.
        """

        async def send() -> pb.RenewResponse:
            return await self._stub.Renew(request, metadata=self._shown, timeout=_CALL_SECONDS)

        return await self._persist(send, Deadline.after(seconds, self.clock), "renewing a sandbox's lease")

    async def release(self, request: pb.ReleaseRequest, seconds: float) -> None:
        """Give a sandbox back.

        Raises:
            SandboxStartError: As for `claim`.
        """

        async def send() -> pb.ReleaseResponse:
            return await self._stub.Release(request, metadata=self._shown, timeout=_CALL_SECONDS)

        await self._persist(send, Deadline.after(seconds, self.clock), "giving a sandbox back")

    async def prefetch(self, request: pb.PrefetchRequest, seconds: float) -> pb.PrefetchResponse:
        """Say how many trials of a world are to come.

        Raises:
            SandboxStartError: As for `claim`.
        """

        async def send() -> pb.PrefetchResponse:
            return await self._stub.Prefetch(request, metadata=self._shown, timeout=_CALL_SECONDS)

        return await self._persist(send, Deadline.after(seconds, self.clock), "announcing trials to the broker")

    async def losses(self, trial: str) -> AsyncGenerator[pb.SandboxLost]:
        """Losses of a trial's sandboxes without end, those before first; the next broker may tell of one again."""
        request = pb.WatchRequest(run=self.access.run, trial=trial)
        while True:
            try:
                async for lost in self._stub.Watch(request, metadata=self._shown):
                    yield lost
            except (aio.AioRpcError, SandboxStartError) as error:
                log.debug("the broker's watch ended", trial=trial, error=str(error))
            await self.clock.sleep(_jittered(_MAX_PAUSE_SECONDS))

    @property
    def _stub(self) -> "SandboxBrokerAsyncStub":
        if self._channel is None:
            self._channel = aio.insecure_channel(self.access.address, options=_OPTIONS)
        return SandboxBrokerStub(self._channel)

    @property
    def _shown(self) -> tuple[tuple[str, str], ...]:
        return metadata(self.access.token())

    async def _persist[R](self, send: Callable[[], Awaitable[R]], deadline: Deadline, doing: str) -> R:
        """Send a call until it is answered or the time is over."""
        pause = _FIRST_PAUSE_SECONDS
        refusals_end = self.clock.now() + _REFUSAL_SECONDS
        while True:
            try:
                return await send()
            except aio.AioRpcError as error:
                is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
                may_pass = error.code() in _AGAIN or (is_refused and self.clock.now() < refusals_end)
                if not may_pass or deadline.remaining <= pause:
                    told = f"{doing}: the broker at {self.access.address}: {error.details() or error.code()}"
                    raise SandboxStartError(told) from error
            await self.clock.sleep(_jittered(pause))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def _jittered(seconds: float) -> float:
    """About so long: what was interrupted at one time is not to come back at one time."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311  no secret
