"""One request of an agent and its answer, in no API's words."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from seatrial_rollout.tito.proxy.demands import Demand
from seatrial_rollout.tito.proxy.errors import RequestError
from seatrial_rollout.tito.template import Message, ToolSchema


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What an agent asks, as templates read it."""

    messages: list[Message]
    """Tool calls with their arguments as objects; a tool's answer may say `is_error`, which no template reads."""
    tools: list[ToolSchema] = field(default_factory=list)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    """Texts that end a turn and are left out of the answer."""
    is_single_call: bool = False
    """Whether the turn ends behind its first call."""
    demand: Demand | None = None
    """What form the answer has to have; none if that is the policy's to choose."""
    stream: bool = False
    is_retry: bool = False
    """Whether the client says that it asks once more."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request as it came."""

    @property
    def key(self) -> bytes:
        """Equal for requests that ask for the same."""
        sampling = (self.max_tokens, self.temperature, self.top_p, self.stop, self.is_single_call)
        return msgspec.json.encode((self.messages, self.tools, sampling, self.demand))


@dataclass(frozen=True, slots=True)
class ReplyCall:
    """A tool call as a client gets it."""

    call_id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn cost."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn of the policy as a client gets it."""

    reply_id: str
    content: str
    reasoning: str
    calls: list[ReplyCall]
    is_cut: bool
    """Whether the turn ended because it was as long as it may be."""
    stop: str | None
    """The text of `ChatRequest.stop` that ended it."""
    usage: Usage
    created: int
    """Seconds since 1970."""


class Exchange:
    """One request while it is answered, by however many attempts of the client it is waited for."""

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self._done = asyncio.Event()
        self._is_claimed = False
        self._outcome: Reply | RequestError | None = None
        self.is_delivered = False
        """Whether a client has got the whole answer."""

    @property
    def has_failed(self) -> bool:
        """Whether there is none but an error."""
        return isinstance(self._outcome, RequestError)

    def claim(self) -> bool:
        """Take it on oneself to answer; False if somebody has."""
        is_mine, self._is_claimed = not self._is_claimed, True
        return is_mine

    def conclude(self, outcome: Reply | RequestError) -> None:
        """Have the answer, or the error in its place."""
        self._outcome = outcome
        self._done.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for an outcome, for so long at most; whether there is one."""
        try:
            async with asyncio.timeout(seconds):
                await self._done.wait()
        except TimeoutError:
            return False
        return True

    @property
    def reply(self) -> Reply:
        """The answer.

        Raises:
            RequestError: There is an error in its place.
        """
        if isinstance(self._outcome, RequestError):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError("the exchange is not over yet")
        return self._outcome
