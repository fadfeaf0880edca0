"""From a turn of the policy to what its client gets."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.proxy.exchange import Reply, ReplyCall, Usage
from seatrial_rollout.tito.proxy.stop_texts import Cut
from seatrial_rollout.tito.template import Message, ToolSchema


def make_reply(cut: Cut, parser: TurnParser, tools: Sequence[ToolSchema], *, number: int, num_prompt: int) -> Reply:
    """What the client gets of a turn.

    With a malformed call in it, a turn is told as text, calls and all, as inference servers do.

    Args:
        cut: The turn.
        parser: Reads it.
        tools: What it may call.
        number: Its number among the session's turns, from which ids are minted.
        num_prompt: Tokens before it.
    """
    parsed, generation = parser.parse(cut.said, tools), cut.generation
    calls = [] if parsed.faults else parsed.calls
    return Reply(
        reply_id=f"{number:012d}",
        content=cut.said.rpartition("</think>")[2].strip() if parsed.faults else parsed.content,
        reasoning=parsed.reasoning,
        calls=[ReplyCall(_call_id(number, index), call.name, call.arguments_text) for index, call in enumerate(calls)],
        is_cut=generation.finish_reason == "length",
        stop=cut.stop,
        usage=Usage(num_prompt, generation.num_cached_tokens, len(generation.token_ids)),
        created=int(datetime.now(UTC).timestamp()),  # noqa: TID251  a date for the client to show
    )


def message_of(reply: Reply) -> Message:
    """A turn as the template reads it."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in reply.calls
        ]
    return message


def _call_id(turn: int, index: int) -> str:
    """Nine letters and digits, which every template accepts; unique in the session."""
    return f"c{turn:05d}{index:03d}"
