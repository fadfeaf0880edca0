"""Calls of `sandboxd`: their metadata, their deadlines, and their errors as ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc import aio

from seatrial_api.errors import SeatrialError, WaitTimeoutError
from seatrial_sandbox import errors
from seatrial_sandbox.errors import ERROR_KEY, SandboxAccessError, SandboxDiedError, SandboxError

CALL_SECONDS = 60.0
"""Time for a call that only asks or tells."""
WORK_SECONDS = 1800.0
"""Time for a call that reads or writes all files, or carries one."""
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),  # a pod whose node is gone answers nothing, not even a refusal
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024**2),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # whatever a pod reaches the internet by, another pod is not there
)
_BROKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
_SENT_IN_VAIN = "Internal error from Core"
"""What gRPC says where a message was to be sent on a connection that broke just then."""


def is_broken(error: aio.AioRpcError) -> bool:
    """Whether the connection ended a call, not the sandbox."""
    return error.code() in _BROKEN or error.details() == _SENT_IN_VAIN


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    """What a call shows."""
    return (("authorization", f"Bearer {token}"),)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise the sandbox's own errors for those of gRPC.

    Args:
        doing: What the calls inside do, for the sentence.

    Raises:
        SandboxError: As the sandbox says.
        FileNotFoundError: If what was asked for is not there.
        SandboxDiedError: If it does not answer.
        WaitTimeoutError: If it takes too long.
    """
    try:
        yield
    except aio.AioRpcError as error:
        raise translate(error, doing) from error


def translate(error: aio.AioRpcError, doing: str) -> SeatrialError | FileNotFoundError:
    """The error of ours that a failed call stands for."""
    said = error.details() or str(error.code())
    name = dict(error.trailing_metadata() or ()).get(ERROR_KEY)
    kind = getattr(errors, str(name), None)
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return FileNotFoundError(said)
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return SandboxAccessError(f"{doing}: {said}")
    if isinstance(kind, type) and issubclass(kind, SandboxError):
        return _make(kind, said)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return WaitTimeoutError(waiting_for=doing)
    if is_broken(error):
        return SandboxDiedError(f"{doing}: the sandbox does not answer: {said}")
    return SandboxError(f"{doing}: {said}")


def _make(kind: type[SandboxError], said: str) -> SandboxError:
    error = kind.__new__(kind)
    error.args = (said,)
    return error
