"""Sandboxes that the broker hands out: claimed for a trial, kept while it runs, given back however it ends."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Coroutine, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self, override

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.broker_access import BrokerAccess
from seatrial_rollout.environment.broker_client import BrokerClient
from seatrial_rollout.environment.source import ClaimedSandbox, SandboxSource
from seatrial_sandbox.errors import SandboxDiedError, SandboxStartError

_RENEWALS_PER_LEASE = 4.0
_RENEWALS_PER_TOKEN = 3.0
_GIVE_BACK_SECONDS = 10.0
"""Less than the grace of a trial that is being stopped."""
_WORD_SECONDS = 5.0
"""Time for the word of a loss to come from the kubelet by the API server and the broker."""
_ANNOUNCE_SECONDS = 60.0
_MAX_LABEL_CHARS = 63
_MARK_CHARS = 10

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class BrokeredSandbox(ClaimedSandbox):
    """A sandbox that a trial holds, as the broker told of it last."""

    trial: str
    """The trial's name for the broker."""
    world: str
    told: pb.Sandbox
    why: str = ""
    """Why it is lost; empty while it is not."""
    _is_lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    @override
    def address(self) -> str:
        return self.told.address

    @override
    def token(self, phase: Phase) -> str:
        if self.why:
            raise SandboxDiedError(self.why)
        return self.told.agent_token if phase is Phase.AGENT else self.told.verify_token

    @override
    async def why_lost(self) -> str:
        try:
            async with asyncio.timeout(_WORD_SECONDS):
                await self._is_lost.wait()
        except TimeoutError:
            return ""
        return self.why

    @property
    def renew_seconds(self) -> float:
        """Time until it is renewed next, well before its lease and its tokens end."""
        return min(self.told.lease_seconds / _RENEWALS_PER_LEASE, self.told.token_seconds / _RENEWALS_PER_TOKEN)

    def lose(self, failure: pb.Failure) -> None:
        """Learn that it is lost."""
        if not self.why:
            self.why = f"sandbox {self.told.name} of world {self.world!r} was lost: {_sentence(failure)}"
            log.warning("sandbox lost", sandbox=self.told.name, trial=self.trial, reason=self.why)
            self._is_lost.set()


class BrokerSource(SandboxSource):
    """Claims sandboxes for one trial while its context is open.

        claim ───▶ ┌────────┐ ── Claim, until it is answered ────────▶ ┌────────┐
                   │ source │ ── Renew, four times a lease ──────────▶ │ broker │
        release ─▶ └────────┘ ◀─ Watch: which is lost, and why ─────── └────────┘

    A sandbox that is lost says why to whoever calls it. Leaving the context gives back what is still held.
    """

    def __init__(self, access: BrokerAccess, *, label: str, wait_seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare; nothing is asked before the first claim.

        Args:
            access: How the broker is reached.
            label: What people shall know the trial by.
            wait_seconds: Time that a claim may wait for a sandbox.
            clock: Time.
        """
        self._access = access
        self._label = label
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._client = BrokerClient(access, clock)
        self._nonce = secrets.token_hex(8)
        self._held: dict[str, BrokeredSandbox] = {}
        self._keepers: dict[str, list[asyncio.Task[None]]] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for sandbox in list(self._held.values()):
                await self.release(sandbox)
        finally:
            for trial in list(self._keepers):
                self._let_go(trial)
            await self._tasks.__aexit__(None, None, None)  # the body's exception goes on by itself, unwrapped
            await self._client.close()

    @override
    async def claim(self, world: str, trial_id: str) -> BrokeredSandbox:
        trial = self._name(trial_id)
        held = self._held.get(trial)
        if held is not None and not held.why:
            return held
        replaced = "" if held is None else held.told.name
        self._let_go(trial)
        request = pb.ClaimRequest(world=world, run=self._access.run, trial=trial, replaces=replaced)
        try:
            answer = await self._client.claim(request, Deadline.after(self._wait_seconds, self._clock))
        except BaseException:
            await self._give_back(trial, "")  # it may have been given one in this very moment
            raise
        if not answer.HasField("sandbox"):
            raise SandboxStartError(f"no sandbox of world {world!r}: {_sentence(answer.failure)}")
        sandbox = self._held[trial] = BrokeredSandbox(trial, world, answer.sandbox)
        log.debug("sandbox claimed", sandbox=sandbox.told.name, trial=trial, waited=answer.sandbox.waited_seconds)
        self._keep(trial, self._renew(sandbox), self._watch(sandbox))
        return sandbox

    @override
    async def release(self, sandbox: ClaimedSandbox) -> None:
        if not isinstance(sandbox, BrokeredSandbox) or self._held.get(sandbox.trial) is not sandbox:
            return
        self._let_go(sandbox.trial)
        await self._give_back(sandbox.trial, sandbox.told.name)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this what `current_source` gives."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def _name(self, trial_id: str) -> str:
        """A label of its own for each id: another run, and the next attempt at this trial, must not get the sandbox."""
        mark = hashlib.sha256(f"{self._nonce}/{trial_id}".encode()).hexdigest()[:_MARK_CHARS]
        known = re.sub(r"[^A-Za-z0-9_.-]", "-", self._label)[: _MAX_LABEL_CHARS - _MARK_CHARS - 1].strip("-_.")
        return f"{known}-{mark}" if known else mark

    def _keep(self, trial: str, *loops: Coroutine[Any, Any, None]) -> None:
        self._keepers[trial] = [self._tasks.create_task(loop) for loop in loops]

    def _let_go(self, trial: str) -> None:
        self._held.pop(trial, None)
        for keeper in self._keepers.pop(trial, ()):
            keeper.cancel()

    async def _give_back(self, trial: str, sandbox: str) -> None:
        try:
            await self._client.release(pb.ReleaseRequest(trial=trial, sandbox=sandbox), _GIVE_BACK_SECONDS)
        except SandboxStartError as error:
            log.warning("a sandbox is not given back and stays until its lease ends", trial=trial, error=str(error))

    async def _renew(self, sandbox: BrokeredSandbox) -> None:
        while not sandbox.why:
            await self._clock.sleep(sandbox.renew_seconds)
            request = pb.RenewRequest(trials=[sandbox.trial])
            try:
                renewal = (await self._client.renew(request, sandbox.told.lease_seconds)).renewals[sandbox.trial]
            except SandboxStartError as error:
                log.warning("a sandbox is not renewed", trial=sandbox.trial, error=str(error))
                continue
            if not renewal.HasField("sandbox"):
                sandbox.lose(renewal.failure)
            elif renewal.sandbox.uid == sandbox.told.uid:
                sandbox.told = renewal.sandbox

    async def _watch(self, sandbox: BrokeredSandbox) -> None:
        async with aclosing(self._client.losses(sandbox.trial)) as losses:
            async for lost in losses:
                if lost.sandbox == sandbox.told.name:
                    sandbox.lose(lost.failure)
                    return


async def announce(access: BrokerAccess, world: str, num_trials: int) -> None:
    """Tell the broker of trials to come, which also sees whether one serves and lets this pod in.

    Args:
        access: How the broker is reached.
        world: WorldImage of their sandboxes.
        num_trials: Trials of the whole run that will claim one soon; takes the place of what was said before.

    Raises:
        SandboxStartError: If no broker serves, or it does not let this pod in.
    """
    client = BrokerClient(access)
    try:
        await client.prefetch(pb.PrefetchRequest(world=world, run=access.run, count=num_trials), _ANNOUNCE_SECONDS)
    finally:
        await client.close()


def current_source() -> BrokerSource:
    """The source of the trial that is being put together.

    Raises:
        LookupError: There is none.
    """
    return _CURRENT.get()


def _sentence(failure: pb.Failure) -> str:
    """A failure with its kind: `OutOfMemory: the container world used more than 2Gi`."""
    kind = pb.FailureKind.Name(failure.kind).removeprefix("FAILURE_KIND_")
    return f"{kind.title().replace('_', '')}: {failure.message}"


_CURRENT: ContextVar[BrokerSource] = ContextVar("seatrial_broker_source")
