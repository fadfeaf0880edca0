"""A broker that hands out whatever sandboxes a test has: for what trials do with a broker's answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, override

import grpc
import pytest

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.protos import broker_pb2_grpc
from seatrial_api.sandbox_token import Phase
from seatrial_api.sandboxes import BROKER_TOKEN_VARIABLE, BROKER_VARIABLE, RUN_VARIABLE
from tests.sandbox_daemons import Daemon

type _Context = grpc.aio.ServicerContext[Any, Any]


class HeldSandbox(Protocol):
    """A sandbox that a trial was given."""

    @property
    def name(self) -> str:
        """What tokens are made out for."""
        ...

    @property
    def address(self) -> str:
        """Where its daemon answers."""
        ...

    def token(self, phase: Phase) -> str:
        """A good token of a phase."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def stop(self) -> None:
        """End it, and leave nothing."""
        ...


type Give = Callable[[str, str], HeldSandbox | None]
"""From a world and a trial to a sandbox, whichever way; none if there is no such world."""


def daemons(*servers: str) -> Give:
    """Sandboxes of the world `office` that are `sandboxd` processes of this machine."""
    return lambda world, trial: Daemon.start(servers, trial=trial) if world == "office" else None


@dataclass
class StandInBroker(broker_pb2_grpc.SandboxBrokerServicer):
    """Hands every trial a sandbox of its own."""

    give: Give
    token: str
    address: str = ""
    announced: pb.PrefetchRequest | None = None
    claims: list[pb.ClaimRequest] = field(default_factory=list)
    held: dict[str, HeldSandbox] = field(default_factory=dict)
    kills_next: pb.Failure | None = None
    """What the next sandbox dies of before its trial reaches it."""
    _losses: dict[str, pb.Failure] = field(default_factory=dict)
    _is_lost: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def holder(self, seconds: float = 180) -> str:
        """The trial that holds a sandbox, once one does."""
        deadline = Deadline.after(seconds)
        while not self.held:
            deadline.check("a trial to claim a sandbox")
            await SYSTEM_CLOCK.sleep(0.05)
        (trial,) = self.held
        return trial

    async def kill(self, trial: str, failure: pb.Failure) -> None:
        """Let a sandbox die, and tell why."""
        await asyncio.to_thread(self.held[trial].kill)
        async with self._is_lost:
            self._losses[trial] = failure
            self._is_lost.notify_all()

    @contextmanager
    def told(self, folder: Path) -> Iterator[None]:
        """This process has the environment of a pod that the operator made; the token lies in the folder."""
        token = folder / "token"
        token.write_text(f"{self.token}\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(BROKER_VARIABLE, self.address)
            patch.setenv(BROKER_TOKEN_VARIABLE, str(token))
            patch.setenv(RUN_VARIABLE, "run")
            yield

    def end(self) -> None:
        """End all sandboxes."""
        for sandbox in self.held.values():
            sandbox.stop()

    @override
    async def Claim(self, request: pb.ClaimRequest, context: _Context) -> pb.ClaimResponse:
        await self._check(context)
        self.claims.append(request)
        if request.replaces:
            await self._take_back(request.trial)
        sandbox = await asyncio.to_thread(self.give, request.world, request.trial)
        if sandbox is None:
            failure = pb.Failure(kind=pb.FAILURE_KIND_WORLD, message=f"there is no WorldImage {request.world}")
            return pb.ClaimResponse(failure=failure)
        self.held[request.trial] = sandbox
        if self.kills_next is not None:
            failure, self.kills_next = self.kills_next, None
            await self.kill(request.trial, failure)
        return pb.ClaimResponse(sandbox=_told(sandbox))

    @override
    async def Renew(self, request: pb.RenewRequest, context: _Context) -> pb.RenewResponse:
        await self._check(context)
        return pb.RenewResponse(
            renewals={trial: pb.Renewal(sandbox=_told(self.held[trial])) for trial in request.trials}
        )

    @override
    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseResponse:
        await self._check(context)
        await self._take_back(request.trial)
        return pb.ReleaseResponse()

    @override
    async def Watch(self, request: pb.WatchRequest, context: _Context) -> AsyncIterator[pb.SandboxLost]:
        await self._check(context)
        async with self._is_lost:
            await self._is_lost.wait_for(lambda: request.trial in self._losses)
        name = self.held[request.trial].name
        yield pb.SandboxLost(trial=request.trial, sandbox=name, failure=self._losses[request.trial])

    @override
    async def Prefetch(self, request: pb.PrefetchRequest, context: _Context) -> pb.PrefetchResponse:
        await self._check(context)
        self.announced = request
        return pb.PrefetchResponse()

    async def _take_back(self, trial: str) -> None:
        self._losses.pop(trial, None)
        sandbox = self.held.pop(trial, None)
        if sandbox is not None:
            await asyncio.to_thread(sandbox.stop)

    async def _check(self, context: _Context) -> None:
        if ("authorization", f"Bearer {self.token}") not in tuple(context.invocation_metadata() or ()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "another token")


@asynccontextmanager
async def stand_in_broker(give: Give, token: str) -> AsyncIterator[StandInBroker]:
    """A broker that listens until the block ends."""
    broker = StandInBroker(give, token)
    server = grpc.aio.server()
    broker_pb2_grpc.add_SandboxBrokerServicer_to_server(broker, server)
    broker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield broker
    finally:
        await server.stop(None)
        broker.end()


def _told(sandbox: HeldSandbox) -> pb.Sandbox:
    return pb.Sandbox(
        name=sandbox.name,
        uid=sandbox.name,
        address=sandbox.address,
        agent_token=sandbox.token(Phase.AGENT),
        verify_token=sandbox.token(Phase.VERIFY),
        token_seconds=600,
        lease_seconds=120,
    )
