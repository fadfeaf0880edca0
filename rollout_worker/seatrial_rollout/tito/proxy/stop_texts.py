"""What ends a turn before its end: engines stop at tokens alone, so the rest of it is cut off before anybody sees it.

A policy samples token by token, so what comes before the cut is distributed as if the engine had stopped there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from seatrial_rollout.engine.generation import Generation
from seatrial_rollout.tito.continuation import said_in
from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.template import ChatTemplate, ToolSchema


@dataclass(frozen=True, slots=True)
class Cut:
    """A turn up to where it was to stop."""

    generation: Generation
    """Its last token holds the end of what stopped it."""
    said: str
    """What comes before a text that stopped it."""
    stop: str | None
    """The text; none if the turn ended otherwise."""


def cut_at(template: ChatTemplate, generation: Generation, stops: Sequence[str]) -> Cut:
    """The turn up to the first of some texts that it says."""
    said = said_in(template, generation)
    found = [(at, text) for text in stops if (at := said.find(text)) >= 0]
    if not found:
        return Cut(generation, said, None)
    at, stop = min(found)
    return Cut(_until(template, generation, lambda text: stop in text), said[:at], stop)


def cut_behind_call(template: ChatTemplate, cut: Cut, parser: TurnParser, tools: Sequence[ToolSchema]) -> Cut:
    """The turn up to the end of its first call, if more calls follow; else as it is."""
    whole = parser.parse(cut.said, tools)
    if len(whole.calls) + len(whole.faults) < 2:
        return cut
    kept = _until(template, cut.generation, lambda text: bool(parser.parse(text, tools).calls))
    said = said_in(template, kept)
    return Cut(kept, said, None) if parser.parse(said, tools).calls == whole.calls[:1] else cut


def _until(template: ChatTemplate, generation: Generation, holds: Callable[[str], bool]) -> Generation:
    """The fewest tokens whose text holds what the text of all of them does."""
    low, high = 1, len(generation.token_ids)
    while low < high:
        middle = (low + high) // 2
        if holds(template.decode(generation.token_ids[:middle])):
            high = middle
        else:
            low = middle + 1
    return replace(
        generation,
        token_ids=generation.token_ids[:low],
        logprobs=generation.logprobs[:low],
        weight_versions=generation.weight_versions[:low],
        finish_reason="stop",
    )
