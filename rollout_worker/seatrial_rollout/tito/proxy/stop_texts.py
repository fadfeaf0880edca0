"""Texts that end a turn: engines stop at tokens alone, so the rest of the turn is cut off before anybody sees it.

A policy samples token by token, so what comes before the cut is distributed as if the engine had stopped there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seatrial_rollout.engine.generation import Generation
from seatrial_rollout.tito.continuation import said_in
from seatrial_rollout.tito.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Cut:
    """A turn up to where it was to stop."""

    generation: Generation
    """Its last token holds the end of the text that stopped it."""
    said: str
    """What comes before that text."""
    stop: str | None
    """The text; none if the turn ended otherwise."""


def cut_at(template: ChatTemplate, generation: Generation, stops: Sequence[str]) -> Cut:
    """The turn up to the first of some texts that it says."""
    said = said_in(template, generation)
    found = [(at, text) for text in stops if (at := said.find(text)) >= 0]
    if not found:
        return Cut(generation, said, None)
    at, stop = min(found)
    low, high = 1, len(generation.token_ids)
    while low < high:  # the fewest tokens that say it
        middle = (low + high) // 2
        if stop in template.decode(generation.token_ids[:middle]):
            high = middle
        else:
            low = middle + 1
    kept = replace(
        generation,
        token_ids=generation.token_ids[:low],
        logprobs=generation.logprobs[:low],
        weight_versions=generation.weight_versions[:low],
        finish_reason="stop",
    )
    return Cut(kept, said[:at], stop)
