"""What a template adds for new messages, as tokens, without touching what the engine made.

The new messages are rendered behind a fixed dummy conversation, and what that conversation itself renders to is
taken away. The join needs care, because templates close an assistant's turn in different ways:

- ChatML writes `<|im_end|>` and a newline. The engine made the stop token; the newline has to be given. So the
  text is taken from behind the *last stop token* of the dummy's closing.
- GLM closes a turn with the token that opens the next one. The engine made that token as its stop, so it is taken
  off the start of what is given.
- A turn that was cut by its token limit has no stop token. The template's own one is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.tito.log import Span
from seatrial_rollout.tito.template import ChatTemplate, Message

_SENTINEL = "seatrial0"  # nine letters and digits: the one form of tool call id that every template accepts

_QUESTION: Message = {"role": "user", "content": "x"}
_ANSWER: Message = {"role": "assistant", "content": _SENTINEL}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": _SENTINEL, "type": "function", "function": {"name": _SENTINEL, "arguments": {}}}],
}


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that follows an assistant's turn, split where the turn's stop token stands."""

    stop_token: str
    """The stop token that the template itself closes the turn with; empty if it writes none."""
    text: str
    """What comes behind it: the rest of the closing, the new messages and the generation prompt."""


def delta_text(template: ChatTemplate, messages: Sequence[Message]) -> Delta:
    """What `template` renders between an assistant's turn and the next one when `messages` come between.

    Raises:
        InvalidInputError: The template cannot render these messages, or closes a turn differently depending on
            what follows, so that no delta exists.
    """
    assistant = _CALL if messages[0].get("role") == "tool" else _ANSWER
    closing = _after_sentinel(template.render([_QUESTION, assistant], generation_prompt=False))
    whole = _after_sentinel(template.render([_QUESTION, assistant, *messages], generation_prompt=True))
    if not whole.startswith(closing):
        raise InvalidInputError(
            f"the chat template closes an assistant's turn with {closing!r}, but with {whole[: len(closing)]!r} once a "
            f"{messages[0]['role']} message follows; such a template cannot be continued token by token"
        )
    stop_token, at = _last_stop_token(template, closing)
    return Delta(stop_token, whole[at:])


def delta_ids(template: ChatTemplate, messages: Sequence[Message], *, last_token: int) -> list[int]:
    """Token ids to give behind a sampled turn that ended with `last_token`.

    Raises:
        InvalidInputError: As `delta_text`.
    """
    delta = delta_text(template, messages)
    is_closed = last_token in template.stop_token_ids
    if not delta.stop_token:
        ids = template.encode(delta.text)
        return ids[1:] if is_closed and ids[0] == last_token else ids
    # Tokenised with the stop token in front: a special token is a border that no merge crosses.
    ids = template.encode(delta.stop_token + delta.text)
    return ids[1:] if is_closed else ids


def rewrite_ids(
    template: ChatTemplate, text: str, parent: Sequence[int], sampled: Sequence[Span]
) -> tuple[int, list[int]]:
    """Tokens for a conversation whose history the template rewrote to `text`.

    As much of the parent sequence is inherited as the template left alone, up to the end of one of its closed turns;
    the rest is what a server that renders the template would read.

    Returns:
        How many of the parent's tokens are inherited, and the token ids behind them.
    """
    for span in reversed(sampled):
        stop_token = parent[span.stop - 1]
        if stop_token not in template.stop_token_ids:
            continue
        kept = template.decode(parent[: span.stop])
        if text.startswith(kept):
            border = template.decode([stop_token])
            return span.stop, template.encode(border + text.removeprefix(kept))[1:]
    return 0, template.encode(text)


def _after_sentinel(text: str) -> str:
    _, found, after = text.partition(_SENTINEL)
    if not found:
        raise InvalidInputError("the chat template leaves out what the assistant says or calls")
    return after


def _last_stop_token(template: ChatTemplate, closing: str) -> tuple[str, int]:
    """The last stop token in `closing` and the position behind it; an empty one at the end if there is none."""
    found = [(closing.rfind(token), token) for token in template.stop_tokens]
    position, token = max(found)
    return (token, position + len(token)) if position >= 0 else ("", len(closing))
