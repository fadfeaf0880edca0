"""The gRPC service: who calls, what is asked, and the answer in the words of `broker.proto`."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import time
from typing import Any, NoReturn, override

import grpc
import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.protos import broker_pb2_grpc
from seatrial_api.sandbox_token import Phase
from seatrial_api.sandboxd_config import DEFAULT_PORT
from seatrial_operator.kube.errors import KubeError
from seatrial_operator.metrics.sandboxes import CLAIM_SECONDS, CLAIMS
from seatrial_operator.sandboxes.broker import Broker, TakenError
from seatrial_operator.sandboxes.callers import Callers, UnknownCallerError
from seatrial_operator.sandboxes.core import claims
from seatrial_operator.sandboxes.core.claims import ClaimState
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.pods import SandboxPod
from seatrial_operator.sandboxes.core.pool import Pool
from seatrial_operator.sandboxes.core.stock import Shelf
from seatrial_operator.sandboxes.tokens import TokenSigner
from seatrial_operator.sandboxes.worlds import WorldKey

log = structlog.get_logger(__name__)

type _Context = grpc.aio.ServicerContext[Any, Any]

_WORLD = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TRIAL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MAX_CHARS = 253
_MAX_WAIT_SECONDS = 86_400.0

FAILURE_KINDS = {
    FailureKind.WORLD: pb.FAILURE_KIND_WORLD,
    FailureKind.IMAGE_PULL: pb.FAILURE_KIND_IMAGE_PULL,
    FailureKind.CONTAINER: pb.FAILURE_KIND_CONTAINER,
    FailureKind.OUT_OF_MEMORY: pb.FAILURE_KIND_OUT_OF_MEMORY,
    FailureKind.EVICTED: pb.FAILURE_KIND_EVICTED,
    FailureKind.NODE_LOST: pb.FAILURE_KIND_NODE_LOST,
    FailureKind.DEADLINE: pb.FAILURE_KIND_DEADLINE,
    FailureKind.QUOTA: pb.FAILURE_KIND_QUOTA,
    FailureKind.UNSCHEDULABLE: pb.FAILURE_KIND_UNSCHEDULABLE,
    FailureKind.LIFETIME: pb.FAILURE_KIND_LIFETIME,
    FailureKind.LEASE: pb.FAILURE_KIND_LEASE,
    FailureKind.DELETED: pb.FAILURE_KIND_DELETED,
}


@dataclass
class BrokerService(broker_pb2_grpc.SandboxBrokerServicer):
    """One method per call. A call sees the namespace of its caller and nothing else."""

    broker: Broker
    callers: Callers
    signer: TokenSigner
    lease_seconds: float
    clock: Clock = SYSTEM_CLOCK

    @override
    async def Prefetch(self, request: pb.PrefetchRequest, context: _Context) -> pb.PrefetchResponse:
        namespace = await self._caller(context)
        await _check(context, world=request.world, run=request.run)
        warm, target = self.broker.prefetch(WorldKey(namespace, request.world), request.run, request.count)
        return pb.PrefetchResponse(warm=warm, target=target)

    @override
    async def Claim(self, request: pb.ClaimRequest, context: _Context) -> pb.ClaimResponse:
        namespace, started = await self._caller(context), self.clock.now()
        await _check(context, world=request.world, run=request.run, trial=request.trial)
        if not 0 < request.deadline_seconds <= _MAX_WAIT_SECONDS:
            await _refuse(context, f"deadline_seconds is {request.deadline_seconds}; it must be above 0, a day at most")
        key = WorldKey(namespace, request.world)
        try:
            claim = await self.broker.claim(key, request.run, request.trial, request.deadline_seconds, request.replaces)
        except TakenError as exc:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(exc))
        response, waited = pb.ClaimResponse(), self.clock.now() - started
        pod = self.broker.sandbox(key, claim.pod)
        if claim.state is ClaimState.HELD and pod is not None:
            response.sandbox.CopyFrom(self._sandbox(claim, pod, waited))
            result = "Served"
        else:
            failure = claim.failure or Failure(FailureKind.DELETED, f"sandbox {claim.pod} was lost at once")
            response.failure.CopyFrom(_failure(failure))
            result = failure.kind.value
        world = key.world if self.broker.worlds.exists(key) else ""  # anybody may ask for worlds that never were
        CLAIMS.labels(team=namespace, world=world, result=result).inc()
        CLAIM_SECONDS.labels(team=namespace, world=world).observe(waited)
        return response

    @override
    async def Renew(self, request: pb.RenewRequest, context: _Context) -> pb.RenewResponse:
        namespace = await self._caller(context)
        response = pb.RenewResponse()
        for trial in request.trials:
            renewal = response.renewals[trial]
            found = self.broker.renew(namespace, trial)
            claim, pod = found or (None, None)
            if claim is not None and claim.state is ClaimState.HELD and pod is not None:
                renewal.sandbox.CopyFrom(self._sandbox(claim, pod, claim.served_at - claim.asked_at))
            else:
                unknown = Failure(FailureKind.LEASE, f"trial {trial} holds no sandbox; claim one")
                renewal.failure.CopyFrom(_failure((claim.failure if claim else None) or unknown))
        return response

    @override
    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseResponse:
        namespace = await self._caller(context)
        self.broker.release(namespace, request.trial, request.sandbox)
        return pb.ReleaseResponse()

    @override
    async def Watch(self, request: pb.WatchRequest, context: _Context) -> AsyncIterator[pb.SandboxLost]:
        namespace = await self._caller(context)
        async for lost in self.broker.losses(namespace, request.run, request.trial):
            failure = lost.claim.failure or Failure(FailureKind.DELETED, f"sandbox {lost.sandbox} is lost")
            yield pb.SandboxLost(trial=lost.trial, sandbox=lost.sandbox, failure=_failure(failure))

    @override
    async def Stats(self, request: pb.StatsRequest, context: _Context) -> pb.StatsResponse:
        namespace, now = await self._caller(context), self.clock.now()
        return pb.StatsResponse(worlds=[_stats(key, pool, now) for key, pool in self.broker.pools(namespace)])

    def _sandbox(self, claim: claims.Claim, pod: SandboxPod, waited: float) -> pb.Sandbox:
        wall = time()
        return pb.Sandbox(
            name=pod.name,
            uid=pod.uid,
            address=_address(pod.address),
            agent_token=self.signer.sign(pod.uid, claim.trial, Phase.AGENT, wall),
            verify_token=self.signer.sign(pod.uid, claim.trial, Phase.VERIFY, wall),
            token_seconds=self.signer.token_seconds,
            lease_seconds=self.lease_seconds,
            image=pod.image,
            node=pod.node,
            waited_seconds=waited,
        )

    async def _caller(self, context: _Context) -> str:
        """The caller's namespace; ends the call if there is none."""
        token = ""
        for name, value in context.invocation_metadata() or ():
            if name == "authorization" and isinstance(value, str):
                token = value.removeprefix("Bearer ")
        if not token:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a service account's token is missing")
        try:
            return await self.callers.namespace_of(token)
        except UnknownCallerError as exc:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(exc))
        except KubeError as exc:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"cannot check the token now: {exc}")


def _address(ip: str) -> str:
    return f"[{ip}]:{DEFAULT_PORT}" if ":" in ip else f"{ip}:{DEFAULT_PORT}"


def _failure(failure: Failure) -> pb.Failure:
    return pb.Failure(kind=FAILURE_KINDS[failure.kind], message=failure.message)


def _stats(key: WorldKey, pool: Pool, now: float) -> pb.WorldStats:
    stats = pb.WorldStats(
        world=key.world,
        warm=pool.num_warm,
        starting=pool.stock.count(Shelf.STARTING, Shelf.FAILED),
        claimed=pool.stock.count(Shelf.CLAIMED, Shelf.BINDING),
        waiting=pool.claims.num_waiting,
        target=pool.supply.target(now),
        created=pool.tally.created,
        served=pool.tally.served,
        failed=pool.tally.failed,
    )
    problem = pool.problem()
    if problem is not None:
        stats.problem.CopyFrom(_failure(problem))
    return stats


async def _check(context: _Context, *, world: str, run: str, trial: str | None = None) -> None:
    """End the call if a name is none."""
    if not _WORLD.fullmatch(world):
        await _refuse(context, f"world is {world!r}; it must be the name of a WorldImage")
    if not run or len(run) > _MAX_CHARS:
        await _refuse(context, f"run is {run!r}; it must be the name of an RLRun, or of whoever asks")
    if trial is not None and not _TRIAL.fullmatch(trial):
        await _refuse(context, f"trial is {trial!r}; it becomes a label: at most 63 letters, digits, '-', '_' and '.'")


async def _refuse(context: _Context, why: str) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
