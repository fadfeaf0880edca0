"""What an API has its own words for."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from seatrial_rollout.tito.proxy.errors import RequestError
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Reply


class Dialect(Protocol):
    """One API."""

    keep_alive: ClassVar[bytes]
    """A server-sent event that clients read over."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Understand a request.

        Raises:
            InvalidRequestError: It cannot be understood.
        """
        ...

    def write(self, reply: Reply, request: ChatRequest) -> dict[str, Any]:
        """An answer as one object."""
        ...

    def events(self, reply: Reply, request: ChatRequest) -> Iterator[bytes]:
        """An answer as server-sent events."""
        ...

    def status(self, error: RequestError) -> int:
        """HTTP status of an error."""
        ...

    def error(self, error: RequestError) -> dict[str, Any]:
        """An error as an object."""
        ...

    def error_event(self, error: RequestError) -> bytes:
        """An error once a stream has begun."""
        ...


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


COMMENT = b": keep-alive\n\n"
"""An event without content."""
