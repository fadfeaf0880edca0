"""What the model reads while it learns: token ids, and how much each of them counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from warm_start.tokenizer import TURN_END, TURN_START

CONTEXT_WEIGHT = 0.2
"""Tokens that the model will only read count less, but reading them well helps."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One sequence; the lists run in parallel."""

    token_ids: list[int]
    weights: list[float]
    """1 where the model will have to write the token itself."""


def list_lesson(tokenizer: PreTrainedTokenizerFast, shown: str, repeated: str) -> Lesson:
    """A list and its repetition."""
    given, wanted = tokenizer.encode(shown), tokenizer.encode(repeated)
    return Lesson(given + wanted, [CONTEXT_WEIGHT / 2] * len(given) + [1.0] * len(wanted))


def conversation_lesson(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, str]], tools: Sequence[dict[str, Any]]
) -> Lesson:
    """A conversation exactly as the policy will meet it: rendered by its own chat template."""
    text = tokenizer.apply_chat_template(list(messages), tools=list(tools), tokenize=False)
    token_ids: list[int] = tokenizer.encode(text)
    return Lesson(token_ids, [1.0 if own else CONTEXT_WEIGHT for own in own_tokens(tokenizer, token_ids)])


def own_tokens(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> list[bool]:
    """Which tokens an assistant writes: all after its opening, up to and with the one that ends its turn."""
    opening: list[int] = tokenizer.encode(f"{TURN_START}assistant\n")
    (turn_end,) = tokenizer.encode(TURN_END)
    own, inside = [], False
    for position, token_id in enumerate(token_ids):
        own.append(inside)
        inside = (inside and token_id != turn_end) or list(
            token_ids[max(0, position + 1 - len(opening)) : position + 1]
        ) == opening
    return own
