"""The policy's turns while an agent works, and what its tool calls came to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.trajectory import ToolCall, Turn
from seatrial_rollout.tito.log import Span
from seatrial_rollout.tito.proxy.exchange import ReplyCall, Usage
from seatrial_rollout.tito.template import Message


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn."""

    span: Span
    text: str
    """The sampled tokens as text, special tokens kept."""
    finish_reason: str
    engine_seconds: float
    content: str
    """What the policy said outside of reasoning and tool calls."""
    calls: Sequence[ReplyCall]
    usage: Usage
    ended: float = field(default_factory=SYSTEM_CLOCK.now)
    """When the engine was done with it."""


class TurnRecords:
    """The turns in order, and the answers to their calls as later requests tell them."""

    def __init__(self) -> None:
        self._turns: list[TurnRecord] = []
        self._owners: dict[str, tuple[TurnRecord, ReplyCall]] = {}
        self._answers: dict[str, ToolCall] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[TurnRecord]:
        return iter(self._turns)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last turn; the newest one before there is any."""
        return self._turns[-1].span.sequence if self._turns else -1

    @property
    def last_content(self) -> str:
        """What was said last."""
        return self._turns[-1].content if self._turns else ""

    def add(self, turn: TurnRecord) -> None:
        """Take in a turn."""
        self._turns.append(turn)
        self._owners |= {call.call_id: (turn, call) for call in turn.calls}

    def observe(self, messages: Sequence[Message]) -> None:
        """Take in the answers to calls that a conversation holds; the first answer to a call counts."""
        for message in messages:
            call_id = message.get("tool_call_id", "")
            if message["role"] != "tool" or call_id in self._answers or call_id not in self._owners:
                continue
            turn, call = self._owners[call_id]
            self._answers[call_id] = ToolCall(
                server="",
                tool=call.name,
                arguments=call.arguments,
                result=message["content"],
                is_error=message.get("is_error", False),
                duration_seconds=SYSTEM_CLOCK.now() - turn.ended,
            )

    def stored(self) -> list[Turn]:
        """The turns as they are stored, with those calls that were answered."""
        return [
            Turn(
                sequence=turn.span.sequence,
                start=turn.span.start,
                stop=turn.span.stop,
                finish_reason=turn.finish_reason,
                text=turn.text,
                tool_calls=[self._answers[call.call_id] for call in turn.calls if call.call_id in self._answers],
                engine_seconds=turn.engine_seconds,
                cached_tokens=turn.usage.cached_tokens,
            )
            for turn in self._turns
        ]
