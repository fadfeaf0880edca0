"""Keeps an agent's work going when the sandbox dies under it."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import structlog
from mcp_types import CallToolResult, Tool

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.errors import SeatrialError, TransientError
from seatrial_api.spec.rollout import ReplaySpec
from seatrial_rollout.harness.errors import (
    CallLostError,
    HarnessError,
    ReplayDivergedError,
    SandboxFailedError,
    ToolServerError,
)
from seatrial_rollout.harness.replay.journal import Journal, JournaledCall
from seatrial_rollout.harness.replay.observation import Observation, days_of_trial, observe
from seatrial_rollout.harness.tool_source import ToolSource
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_sandbox.errors import SandboxDiedError

_log = structlog.get_logger()


@runtime_checkable
class Restorable(Protocol):
    """An environment whose sandbox can be replaced by another one with the same files."""

    async def begin_saving(self) -> None:
        """Look at the sandbox before anybody acts in it.

        Raises:
            SeatrialError: If that fails.
        """
        ...

    async def save(self, *, is_final: bool = False) -> bool:
        """Keep the files as they are now, outside of the sandbox; False if they are not all that would be lost.

        Args:
            is_final: Whether the agent has ended, so that files are all that matters.

        Raises:
            SeatrialError: If that fails; what was kept before is still there.
        """
        ...

    async def renew(self) -> None:
        """Give the sandbox up and go on in another, with the files as they were kept last.

        Raises:
            TransientError: If there is none to be had, or that one dies too.
            SeatrialError: If the files cannot be put back.
        """
        ...

    async def is_alive(self) -> bool:
        """Whether the sandbox answers."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """How long things may take while a sandbox is brought back."""

    ready_seconds: float
    """Until its tools answer."""
    call_seconds: float
    """For each call that is made again."""


@dataclass(slots=True)
class Lifeline:
    """One trial's hold on a sandbox, whichever it is just now.

        call ──▶ sandbox ──▶ answer ──▶ journal ──▶ every k calls: snapshot
                    ✗ dies
                    └─▶ claim another ─▶ restore the snapshot ─▶ make the tail again ─▶ make the call

    The world that a call was changing when its sandbox died is gone with that sandbox. So the call is made again,
    whatever its tool says of repetition, in a world where it has never run: each call has taken effect exactly once in
    the world that the trial ends with. Whatever lies outside of the sandbox may see it more than once. For the same
    reason a sandbox that lives is given up when a server of its died under a call: nobody knows what it did there.

    All this is not the agent's time: the trial's clock stands still, and gives back what a lost call took.
    """

    sandbox: Restorable
    servers: Sequence[ToolSource]
    clock: TrialClock
    spec: ReplaySpec
    limits: ReplayLimits
    wall: Callable[[], float] = time.time
    """Seconds since the epoch."""
    num_restores: int = field(default=0, init=False)
    """Sandboxes that took the place of one that had died."""
    restore_seconds: float = field(default=0.0, init=False)
    """Wall time that they took."""
    journal: Journal = field(init=False)
    _is_finished: bool = field(default=False, init=False)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.spec.snapshot_every_calls)
        self._began = self.wall()

    async def call(self, server: ToolSource, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool, in as many sandboxes as it takes.

        Raises:
            TimeoutError: No answer within `seconds`.
            ToolServerError: The server failed in a sandbox that lives.
            SandboxFailedError: The sandbox died too often, or cannot be restored.
            ReplayDivergedError: The sandbox died, and another one is not what it was.
        """
        result = await self.hold(lambda: server.call(tool, arguments, seconds))
        if server.is_in_sandbox:
            self.journal.record(server.name, tool.name, arguments, self._observe(result))
            if self.journal.is_snapshot_due:
                await self._save()
        return result

    async def hold[T](self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something in the sandbox that changes nothing if it fails; if the sandbox dies, again in another.

        Raises:
            SandboxFailedError: The sandbox died too often, or cannot be restored.
            ReplayDivergedError: The sandbox died, and another one is not what it was.
            HarnessError: What it raised in a sandbox that lives.
        """
        while True:
            charged = self.clock.charged
            try:
                return await act()
            except HarnessError as failure:
                with self.clock.stopped():
                    if not await self._is_lost(failure):
                        raise
                    self.clock.excuse(self.clock.charged - charged)
                    await self._bring_back(failure)

    async def finish(self) -> None:
        """Keep what the agent leaves: should the sandbox die under the verifier, another one can be graded."""
        self._is_finished = await self._try_to_save(is_final=True)

    async def bring_back_work(self) -> bool:
        """Have another sandbox with all that the agent left, if its own has died since it finished; True if so."""
        if not self._is_finished or await self.sandbox.is_alive():
            return False
        started = SYSTEM_CLOCK.now()
        try:
            while self.num_restores < self.spec.max_restores:
                self.num_restores += 1
                _log.warning("sandbox lost under the verifier", restore=self.num_restores)
                try:
                    await self.sandbox.renew()
                except TransientError as failure:
                    _log.warning("sandbox not restored", error=str(failure))
                else:
                    return True
        finally:
            self.restore_seconds += SYSTEM_CLOCK.now() - started
        return False

    async def _is_lost(self, failure: HarnessError) -> bool:
        """Whether it was the sandbox, whose tool servers are the first to be missed, or its world is not known now."""
        match failure:
            case SandboxFailedError(__cause__=SandboxDiedError()) | CallLostError():
                return True
            case SandboxFailedError() | ToolServerError():
                return not await self.sandbox.is_alive()
            case _:
                return False

    async def _bring_back(self, loss: Exception) -> None:
        started = SYSTEM_CLOCK.now()
        try:
            while self.num_restores < self.spec.max_restores:
                self.num_restores += 1
                _log.warning("sandbox lost", error=str(loss), restore=self.num_restores)
                try:
                    await self._restore()
                    await self._replay()
                except TransientError as failure:
                    loss = failure
                except HarnessError as failure:
                    if not await self._is_lost(failure):
                        raise
                    loss = failure
                else:
                    return
        finally:
            self.restore_seconds += SYSTEM_CLOCK.now() - started
        if isinstance(loss, ToolServerError):
            raise loss
        raise SandboxFailedError(f"{loss} (after {self.num_restores} restored sandboxes, the most allowed)") from loss

    async def _restore(self) -> None:
        """Have another sandbox with the files of the last snapshot, and wait for its tools."""
        inside = [server for server in self.servers if server.is_in_sandbox]
        for server in inside:
            await server.let_go()
        try:
            await self.sandbox.renew()
        except TransientError:
            raise
        except SeatrialError as exc:
            raise SandboxFailedError(f"the sandbox cannot be restored: {exc}") from exc
        deadline = Deadline.after(self.limits.ready_seconds)
        for server in inside:
            if await server.offered_again(deadline) != server.tools:
                raise ReplayDivergedError(what=f"MCP server {server.name}", difference="it offers other tools now")

    async def _replay(self) -> None:
        """Make the calls again that the snapshot does not hold."""
        servers = {server.name: server for server in self.servers}
        for call in self.journal.tail:
            try:
                again = await self._repeat(servers[call.server], call)
            except TimeoutError:
                gone = f"it was answered, and now is not within {self.limits.call_seconds:g} s"
                raise ReplayDivergedError(what=str(call), difference=gone) from None
            if difference := call.difference(again):
                raise ReplayDivergedError(what=str(call), difference=difference)

    async def _repeat(self, server: ToolSource, call: JournaledCall) -> Observation:
        tool = next(tool for tool in server.tools if tool.name == call.tool)
        return self._observe(await server.call(tool, dict(call.arguments), self.limits.call_seconds))

    async def _save(self) -> None:
        """Take a snapshot; without one there is only more to be made again."""
        if await self._try_to_save(is_final=False):
            self.journal.saved()
        else:
            self.journal.put_off()

    async def _try_to_save(self, *, is_final: bool) -> bool:
        """Whether there is a snapshot; that there is none is never a trial's end."""
        with self.clock.stopped():
            try:
                return await self.sandbox.save(is_final=is_final)
            except (SeatrialError, OSError) as exc:
                _log.warning("no snapshot", error=str(exc))
                return False

    def _observe(self, result: CallToolResult) -> Observation:
        return observe(result, days_of_trial(self._began, self.wall()))
