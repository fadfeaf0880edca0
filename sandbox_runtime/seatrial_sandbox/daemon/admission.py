"""Around every call: is it allowed, who is under way, and how its error is said in gRPC."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Never, Protocol

import grpc
from grpc import aio

from seatrial_api.finding import FindingKind
from seatrial_api.sandbox_token import Method, Phase
from seatrial_sandbox.daemon.authority import Authority, InvalidTokenError
from seatrial_sandbox.daemon.sandbox import Frozen, Sandbox
from seatrial_sandbox.errors import (
    ERROR_KEY,
    SandboxAccessError,
    SandboxDataError,
    SandboxDiedError,
    SandboxDiskFullError,
    SandboxError,
    SandboxLimitError,
    SandboxPathError,
    SandboxStateError,
)

_CODES: dict[type[BaseException], grpc.StatusCode] = {
    InvalidTokenError: grpc.StatusCode.UNAUTHENTICATED,
    SandboxAccessError: grpc.StatusCode.PERMISSION_DENIED,
    SandboxPathError: grpc.StatusCode.PERMISSION_DENIED,
    FileNotFoundError: grpc.StatusCode.NOT_FOUND,
    SandboxStateError: grpc.StatusCode.FAILED_PRECONDITION,
    SandboxDiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    SandboxLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    SandboxDataError: grpc.StatusCode.DATA_LOSS,
    SandboxDiedError: grpc.StatusCode.UNAVAILABLE,
    SandboxError: grpc.StatusCode.INVALID_ARGUMENT,
}
_BEARER = "bearer "

type Context = aio.ServicerContext[Any, Any]


@dataclass(slots=True, eq=False)
class Gate:
    """Every call passes here.

    A call of phase Agent that is under way when verification begins is cancelled, and has ended before the agent's
    processes are killed: nothing that an agent's token set in motion can reach into verification.
    """

    sandbox: Sandbox
    authority: Authority
    _under_way: set[asyncio.Task[Any]] = field(default_factory=set, init=False)
    _freezing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def pass_through[T](self, method: Method, context: Context, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call if its token allows it; its errors end it with a code."""
        try:
            self.authority.admit(_token(context), method, self.sandbox.phase)
            return await self._watched(method, call)
        except (SandboxAccessError, SandboxPathError) as error:
            self.sandbox.note(FindingKind.REFUSED, f"{method}: {error}")
            await _abort(context, error)
        except (SandboxError, OSError) as error:
            await _abort(context, error)

    async def freeze(self) -> Frozen:
        """Begin verification once, whoever asks, and however often."""
        async with self._freezing:
            if self.sandbox.phase is Phase.VERIFY:
                return Frozen(0, [])
            self.sandbox.phase = Phase.VERIFY  # from here on no call of the agent's is admitted
            under_way = set(self._under_way)
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way)
            return await self.sandbox.freeze()

    async def _watched[T](self, method: Method, call: Callable[[], Awaitable[T]]) -> T:
        task = asyncio.current_task()
        if task is None or self.sandbox.phase is not Phase.AGENT or method is Method.FREEZE:
            return await call()
        self._under_way.add(task)
        try:
            return await call()
        except asyncio.CancelledError:
            if self.sandbox.phase is Phase.AGENT:
                raise
            raise SandboxAccessError("the agent's phase has ended") from None
        finally:
            self._under_way.discard(task)


class _Gated(Protocol):
    gate: Gate


def admitted[S: _Gated, Q, R](
    method: Method,
) -> Callable[[Callable[[S, Q, Context], Awaitable[R]]], Callable[[S, Q, Context], Coroutine[Any, Any, R]]]:
    """Have a service's call pass its gate first."""

    def decorate(call: Callable[[S, Q, Context], Awaitable[R]]) -> Callable[[S, Q, Context], Coroutine[Any, Any, R]]:
        @wraps(call)
        async def gated(self: S, request: Q, context: Context) -> R:
            return await self.gate.pass_through(method, context, lambda: call(self, request, context))

        return gated

    return decorate


def _token(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.lower().startswith(_BEARER):
            return value[len(_BEARER) :]
    raise InvalidTokenError("the call has no token")


async def _abort(context: Context, error: SandboxError | OSError) -> Never:
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        error = SandboxDiskFullError(str(error))
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    text = str(error).encode(errors="backslashreplace").decode()[:2000]
    with suppress(asyncio.InvalidStateError):
        await context.abort(code, text, ((ERROR_KEY, type(error).__name__),))
    raise error
