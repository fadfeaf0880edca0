"""Re-reads a stored trajectory and proves that it is token-exact."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import override

from seatrial_api.errors import InvalidInputError
from seatrial_api.trajectory import GivenSpan, TokenSequence, Trajectory
from seatrial_rollout.tito.delta import delta_ids, rewrite_ids
from seatrial_rollout.tito.log import GIVEN_VERSION, Span
from seatrial_rollout.tito.template import ChatTemplate, Message


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a trajectory, and where."""

    sequence: int
    position: int
    problem: str

    @override
    def __str__(self) -> str:
        return f"sequence {self.sequence}, token {self.position}: {self.problem}"


def verify(trajectory: Trajectory, template: ChatTemplate) -> list[Fault]:
    """Everything that keeps `trajectory` from being token-exact under `template`; empty if nothing does.

    Checked are: each sampled token belongs to one turn and has a log-probability and a weight version, each given
    token has neither; a turn's tokens decode to its text; the given tokens are those that the template yields for the
    recorded messages; a branched sequence inherits its parent's tokens. A trajectory that records no given spans
    (a harness with no log of its own) is checked without the template.
    """
    faults = [fault for index, sequence in enumerate(trajectory.sequences) for fault in _columns(index, sequence)]
    faults += _parents(trajectory)
    faults += _turns(trajectory, template)
    if trajectory.given:
        faults += _coverage(trajectory)
        faults += _given(trajectory, template)
    return faults


def _columns(index: int, sequence: TokenSequence) -> Iterator[Fault]:
    """Mask, log-probability and weight version say the same of each token."""
    columns = zip(sequence.loss_mask, sequence.logprobs, sequence.weight_versions, strict=True)
    for position, (mask, logprob, version) in enumerate(columns):
        if mask == 1:
            if math.isnan(logprob) or math.isinf(logprob) or logprob > 0:
                yield Fault(index, position, f"a sampled token has log-probability {logprob}")
            if version < 0:
                yield Fault(index, position, f"a sampled token has weight version {version}")
        elif mask == 0:
            if logprob != 0 or version != GIVEN_VERSION:
                found = f"log-probability {logprob} and weight version {version}"
                yield Fault(index, position, f"a given token has {found}; expected 0 and {GIVEN_VERSION}")
        else:
            yield Fault(index, position, f"the mask is {mask}, neither 0 nor 1")


def _parents(trajectory: Trajectory) -> Iterator[Fault]:
    for index, sequence in enumerate(trajectory.sequences):
        if sequence.parent is not None and not 0 <= sequence.parent < index:
            yield Fault(index, 0, f"the parent is sequence {sequence.parent}, which does not come before")


def _turns(trajectory: Trajectory, template: ChatTemplate) -> Iterator[Fault]:
    """Each sampled token belongs to exactly one turn, and each turn holds its text."""
    owners = [[0] * len(sequence.token_ids) for sequence in trajectory.sequences]
    for number, turn in enumerate(trajectory.turns):
        if turn.sequence >= len(owners) or not turn.start < turn.stop <= len(owners[turn.sequence]):
            yield Fault(turn.sequence, turn.start, f"turn {number} ends at {turn.stop}, outside of its sequence")
            continue
        for position in range(turn.start, turn.stop):
            owners[turn.sequence][position] += 1
        text = template.decode(trajectory.sequences[turn.sequence].token_ids[turn.start : turn.stop])
        if text != turn.text:
            yield Fault(turn.sequence, turn.start, f"turn {number} decodes to {text!r}, its text is {turn.text!r}")
    for index, sequence in enumerate(trajectory.sequences):
        for position, (mask, owned) in enumerate(zip(sequence.loss_mask, owners[index], strict=True)):
            if mask != owned:
                yield Fault(index, position, f"the mask is {mask}, but {owned} turns hold the token")


def _coverage(trajectory: Trajectory) -> Iterator[Fault]:
    """Turns, given spans and inherited prefixes follow each other without gap or overlap."""
    for index, sequence in enumerate(trajectory.sequences):
        turns = [(turn.start, turn.stop) for turn in trajectory.turns if turn.sequence == index]
        given = [(span.start, span.stop) for span in trajectory.given if span.sequence == index]
        at = given[0][0] if given and sequence.parent is not None else 0
        for start, stop in sorted(turns + given):
            if start != at:
                yield Fault(index, min(start, at), f"a span starts at {start}, the one before it ended at {at}")
            at = stop
        if at != len(sequence.token_ids):
            yield Fault(index, at, f"nothing is recorded of the last {len(sequence.token_ids) - at} tokens")


def _given(trajectory: Trajectory, template: ChatTemplate) -> Iterator[Fault]:
    """Given tokens are what the template yields for the recorded messages."""
    started: set[int] = set()
    for span in trajectory.given:
        if span.sequence >= len(trajectory.sequences):
            yield Fault(span.sequence, span.start, "a given span names a sequence that is not there")
            continue
        is_start = span.sequence not in started
        started.add(span.sequence)
        try:
            if is_start and span.continues:
                yield from _branch(trajectory, span, template)
            elif is_start:
                yield from _sequence_start(trajectory, span, template)
            else:
                yield from _observation(trajectory.sequences[span.sequence], span, template)
        except (InvalidInputError, ValueError) as exc:
            yield Fault(span.sequence, span.start, f"the recorded messages cannot be rendered: {exc}")


def _observation(sequence: TokenSequence, span: GivenSpan, template: ChatTemplate) -> Iterator[Fault]:
    last_token = sequence.token_ids[span.start - 1]
    wanted = delta_ids(template, _objects(span.messages), last_token=last_token)
    yield from _compare(span, sequence.token_ids[span.start : span.stop], wanted)


def _branch(trajectory: Trajectory, span: GivenSpan, template: ChatTemplate) -> Iterator[Fault]:
    """A conversation that goes on behind an earlier turn, while its parent went on in another way."""
    sequence = trajectory.sequences[span.sequence]
    if sequence.parent is None or sequence.parent >= span.sequence:
        yield Fault(span.sequence, 0, "the sequence branches off, but names no parent that comes before")
        return
    if sequence.token_ids[: span.start] != trajectory.sequences[sequence.parent].token_ids[: span.start]:
        yield Fault(span.sequence, 0, f"the first {span.start} tokens are not those of the parent")
    elif not _ends_a_turn(trajectory, sequence.parent, span.start):
        yield Fault(span.sequence, span.start, "the sequence branches off where no turn of its parent ends")
    else:
        yield from _observation(sequence, span, template)


def _ends_a_turn(trajectory: Trajectory, sequence: int | None, position: int) -> bool:
    """Whether a turn ends at a position of a sequence, be it one that the sequence inherits."""
    while sequence is not None:
        if any(turn.sequence == sequence and turn.stop == position for turn in trajectory.turns):
            return True
        parent = trajectory.sequences[sequence].parent
        sequence = parent if parent is not None and parent < sequence else None
    return False


def _sequence_start(trajectory: Trajectory, span: GivenSpan, template: ChatTemplate) -> Iterator[Fault]:
    sequence = trajectory.sequences[span.sequence]
    if span.rendered_at:
        template = template.at(datetime.fromisoformat(span.rendered_at))
    text = template.render(_objects(span.messages), json.loads(span.tools), generation_prompt=True)
    inherited, wanted = 0, template.encode(text)
    if sequence.parent is not None and sequence.parent < span.sequence:
        parent = trajectory.sequences[sequence.parent].token_ids
        sampled = [Span(turn.sequence, turn.start, turn.stop) for turn in trajectory.turns]
        # What could be inherited beyond that may have come later, in a conversation that went the same way.
        kept = min(span.start, len(parent))
        turns = [turn for turn in sampled if turn.sequence == sequence.parent and turn.stop <= kept]
        inherited, wanted = rewrite_ids(template, text, parent, turns)
        if sequence.token_ids[:inherited] != parent[:inherited]:
            yield Fault(span.sequence, 0, f"the first {inherited} tokens are not those of the parent")
    if span.start != inherited:
        yield Fault(span.sequence, span.start, f"{span.start} tokens are inherited; the template leaves {inherited}")
    yield from _compare(span, sequence.token_ids[span.start : span.stop], wanted)


def _objects(text: str) -> list[Message]:
    messages = json.loads(text)
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ValueError("not a list of messages")
    return messages


def _compare(span: GivenSpan, found: list[int], wanted: list[int]) -> Iterator[Fault]:
    if found == wanted:
        return
    same = next(
        (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
    )
    problem = f"given tokens differ from the template's: {found[same : same + 4]}, expected {wanted[same : same + 4]}"
    yield Fault(span.sequence, span.start + same, problem)
