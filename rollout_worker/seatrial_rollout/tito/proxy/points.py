"""Finds where in the log a client's conversation goes on.

A client sends the whole conversation each time, and not as it got it: arguments are re-serialised, empty texts appear
and reasoning is lost. So nothing is compared by bytes. Messages that the policy did not write are compared by meaning;
its own turns by the ids of their tool calls, which we minted and every client keeps, and those without a call by
their place and what they say.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from seatrial_rollout.tito.log import Span
from seatrial_rollout.tito.template import Message, ToolSchema

_REASONING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_encode = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class Point:
    """The end of a turn of the policy, behind which a conversation may go on in any number of ways."""

    sequence: int
    stop: int
    """Tokens of that sequence that the conversation holds."""
    messages: Sequence[Message]
    """The conversation, this turn included."""
    tools: Sequence[ToolSchema]
    sampled: Sequence[Span]
    """The policy's turns in that sequence."""
    prompt: str
    """What the template rendered before the turn, where history follows the template."""


class Points:
    """The ends of all turns, by the conversation that leads to them."""

    def __init__(self) -> None:
        self._points: dict[bytes, Point] = {}
        self._turns: dict[str, int] = {}
        self._num_calls: list[int] = []

    def add(self, point: Point, asked: Sequence[Message], call_ids: Sequence[str]) -> None:
        """Remember the end of a turn.

        Args:
            point: Where it is.
            asked: The conversation before the turn, as the client sent it.
            call_ids: Minted ids of the turn's calls.
        """
        self._turns |= dict.fromkeys(call_ids, len(self._num_calls))
        self._num_calls.append(len(call_ids))
        chain = _opening(point.tools)
        for message in (*asked, point.messages[-1]):
            chain = self._extend(chain, message)
        self._points[chain] = point

    def find(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[Point | None, int]:
        """The last turn up to which the policy has had this conversation, and how many messages lead there."""
        found: tuple[Point | None, int] = (None, 0)
        chain = _opening(tools)
        for number, message in enumerate(messages, start=1):
            chain = self._extend(chain, message)
            if message["role"] == "assistant" and (point := self._points.get(chain)) is not None:
                found = (point, number)
        return found

    def _extend(self, chain: bytes, message: Message) -> bytes:
        return hashlib.blake2b(chain + _encode(self._meaning(message)), digest_size=16).digest()

    def _meaning(self, message: Message) -> object:
        if message["role"] != "assistant":
            return message
        calls = message.get("tool_calls") or []
        if not calls:
            return ["said", _REASONING.sub("", message["content"]).strip()]
        turns = {self._turns.get(call["id"]) for call in calls}
        turn = turns.pop()
        if turns or turn is None or self._num_calls[turn] != len(calls):
            return _without_reasoning(message)  # the client wrote it, or left out a part of a turn
        return ["turn", turn]


def _without_reasoning(message: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def _opening(tools: Sequence[ToolSchema]) -> bytes:
    return hashlib.blake2b(_encode(tools), digest_size=16).digest()
