"""What new messages do to a conversation with the policy: pure functions that both doors to the token log share."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from seatrial_api.errors import InvalidInputError
from seatrial_api.trajectory import GivenSpan
from seatrial_rollout.engine.generation import Generation
from seatrial_rollout.tito.delta import delta_ids, rewrite_ids
from seatrial_rollout.tito.log import Span
from seatrial_rollout.tito.template import ChatTemplate, Message, ToolSchema

type History = Literal["Keep", "AsTemplate"]
"""What happens where the template would rewrite earlier turns; see `HarnessSpec.history`."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation up to the end of a turn of the policy."""

    messages: Sequence[Message]
    """All that was said, the policy's turns as its parsers read them."""
    tools: Sequence[ToolSchema]
    token_ids: Sequence[int]
    sampled: Sequence[Span] = ()
    """The policy's turns in its sequence."""
    prompt: str = ""
    """What the template rendered before the last turn, where history follows the template."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What observing messages does to the log."""

    messages: list[Message]
    token_ids: list[int]
    """What is given to the policy."""
    inherited: int | None = None
    """Tokens taken over from the current sequence when the template rewrites history; None to go on in it."""
    prompt: str = field(default="", repr=False)
    """The conversation as the template renders it then, where history follows the template."""


def continue_with(
    template: ChatTemplate, conversation: Conversation, messages: Sequence[Message], history: History
) -> Continuation:
    """What `messages` behind the policy's turn do to the log.

    Raises:
        InvalidInputError: The template cannot continue with these messages.
    """
    new = list(messages)
    last_token = conversation.token_ids[-1]
    appended = Continuation(new, delta_ids(template, new, last_token=last_token))
    return appended if history == "Keep" else _as_template(template, conversation, appended)


def _as_template(template: ChatTemplate, before: Conversation, appended: Continuation) -> Continuation:
    """A fresh start if the template renders what was read and said differently, now that more follows."""
    try:
        said = template.render(before.messages, before.tools, generation_prompt=False)
        prompt = template.render([*before.messages, *appended.messages], before.tools, generation_prompt=True)
    except InvalidInputError:
        # The policy did what its template has no form for (Llama: two calls in a turn), which is no fault of ours.
        return appended
    # What the template rewrites may be something that was never there, like an empty <think> block.
    is_kept = prompt.startswith(before.prompt) and prompt.startswith(said)
    if is_kept or prompt.startswith(template.decode(before.token_ids)):
        return replace(appended, prompt=prompt)
    inherited, fresh = rewrite_ids(template, prompt, before.token_ids, before.sampled)
    return Continuation(appended.messages, fresh, inherited, prompt)


def said_in(template: ChatTemplate, generation: Generation) -> str:
    """The text of a turn without the token that ended it."""
    ids = generation.token_ids
    return template.decode(ids[:-1] if ids[-1] in template.stop_token_ids else ids)


def given_span(span: Span, messages: Sequence[Message], *, continues: bool = False) -> GivenSpan:
    """The record of tokens that were given behind a turn."""
    return GivenSpan(
        sequence=span.sequence, start=span.start, stop=span.stop, messages=_json(messages), continues=continues
    )


def opening_span(
    span: Span, messages: Sequence[Message], tools: Sequence[ToolSchema], template: ChatTemplate
) -> GivenSpan:
    """The record of tokens that a sequence starts with: the whole conversation so far."""
    return GivenSpan(
        sequence=span.sequence,
        start=span.start,
        stop=span.stop,
        messages=_json(messages),
        tools=_json(tools),
        rendered_at=template.now.isoformat() if template.asks_for_the_time else "",
    )


def _json(value: Sequence[Message]) -> str:
    return json.dumps(list(value), ensure_ascii=False)
