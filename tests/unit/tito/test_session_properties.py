"""What holds of every conversation, whatever the policy says."""

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial_rollout.tito.session import SampledTurn, Session
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from tests.chat_models import ChatModel
from tests.conversations import make_session, tool_message, trajectory_of, user_message
from tests.scripted_engine import Said, ScriptedEngine


@dataclass(frozen=True)
class Exchange:
    """One turn of the policy and what it gets to see next."""

    text: str
    ends: str
    """`stop`, `length`, or `other` for a stop token that is not the template's first."""
    answers: list[str]
    """Tool results; an empty list is followed by the user."""


def speech() -> st.SearchStrategy[str]:
    pieces = st.sampled_from(
        [
            *("<think>\n", "\n</think>\n\n", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>x", "<|user|>"),
            *('{"name": "sheets_lookup", "arguments": {"row": "ü"}}', '{"name": "a", "parameters": {}}', "a\n{}"),
            *("<|eot_id|>", "<|observation|>", "\n", " ", "€", "🪔", "価格"),
        ]
    )
    return st.lists(pieces | st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=6).map("".join)


exchanges = st.lists(
    st.builds(
        Exchange,
        text=speech().filter(bool),
        ends=st.sampled_from(["stop", "stop", "other", "length"]),
        answers=st.lists(speech(), max_size=3),
    ),
    min_size=1,
    max_size=5,
)

thorough = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def converse(
    model: ChatModel, script: list[Exchange], *, history: Any, in_bytes: bool
) -> tuple[Session, list[SampledTurn], ScriptedEngine]:
    stops = list(model.template.stop_tokens)
    lines = [
        Said(each.text, stops[-1] if each.ends == "other" else "", "length" if each.ends == "length" else "stop")
        for each in script
    ]
    engine = ScriptedEngine(model.template, lines, in_bytes=in_bytes)
    session = make_session(model, engine, history=history)

    async def talk() -> list[SampledTurn]:
        turns = []
        session.start([user_message("What does the lamp cost?")])
        for each in script:
            turns.append(await session.turn())
            messages = [tool_message(answer, index) for index, answer in enumerate(each.answers)]
            session.observe(messages or [user_message("Go on.")])
        return turns

    return session, asyncio.run(talk()), engine


@thorough
@given(script=exchanges, in_bytes=st.booleans())
def test_keeping_history_a_sequence_only_grows_and_passes_verification(
    model: ChatModel, script: list[Exchange], in_bytes: bool
) -> None:
    session, turns, engine = converse(model, script, history="Keep", in_bytes=in_bytes)
    (sequence,) = session.sequences()
    for request, turn in zip(engine.requests, turns, strict=True):
        assert sequence.token_ids[: turn.span.start] == request.token_ids
        assert sequence.token_ids[turn.span.start : turn.span.stop] == engine.made[turns.index(turn)]
    assert sequence.num_sampled == sum(len(ids) for ids in engine.made)
    assert verify(trajectory_of(session, turns), model.template) == []


@thorough
@given(script=exchanges, in_bytes=st.booleans())
def test_as_the_template_has_it_each_sampled_token_is_in_one_sequence_and_verifies(
    model: ChatModel, script: list[Exchange], in_bytes: bool
) -> None:
    session, turns, engine = converse(model, script, history="AsTemplate", in_bytes=in_bytes)
    sequences = session.sequences()
    assert sum(sequence.num_sampled for sequence in sequences) == sum(len(ids) for ids in engine.made)
    for request, turn, made in zip(engine.requests, turns, engine.made, strict=True):
        ids = sequences[turn.span.sequence].token_ids
        assert ids[: turn.span.start] == request.token_ids
        assert ids[turn.span.start : turn.span.stop] == made
    assert [sequence.parent for sequence in sequences] == [None, *range(len(sequences) - 1)]
    assert verify(trajectory_of(session, turns), model.template) == []


plain = st.from_regex(r"[A-Za-zäé価€][A-Za-zäé価€ .,0-9]{0,20}[a-z.]", fullmatch=True)


@thorough
@given(rounds=st.lists(st.tuples(plain, st.lists(plain, max_size=2)), min_size=1, max_size=5))
def test_a_policy_that_writes_as_the_template_does_ends_with_the_templates_own_text(
    model: ChatModel, rounds: list[tuple[str, list[str]]]
) -> None:
    session, template = asyncio.run(canonical(model, rounds))
    (sequence,) = session.sequences()
    rendered = template.render(session._messages, generation_prompt=True)
    if model.family.name == "hermes":  # it adds a line break behind a tool result once something follows
        rendered = rendered.replace("</tool_response>\n<|im_end|>", "</tool_response><|im_end|>")
    assert template.decode(sequence.token_ids) == rendered


async def canonical(model: ChatModel, rounds: list[tuple[str, list[str]]]) -> tuple[Session, ChatTemplate]:
    """Answers and tool calls exactly as the template would write them; reasoning that is never taken away."""
    family, template = model.family, model.template
    think = "<think>\nhm\n</think>\n\n" if family.name == "qwen3" else ""
    line = "\n" if family.name == "glm4" else ""
    script, shown = [], []
    for words, results in rounds:
        # Llama's template takes one call a turn; Qwen3 drops reasoning at a user's turn, so there only tools answer.
        answers = results[:1] if family.name in {"llama3", "glm4"} else results
        if family.name == "qwen3":
            answers = answers or [words]
        calls = [("sheets_lookup", {"row": words}) for _ in answers]
        text = think + family.text_of_calls(calls) if calls else f"{line}{words}"
        script.append(Said(text, family.stop_after_call() if calls else ""))
        shown.append([tool_message(answer, i) for i, answer in enumerate(answers)] or [user_message("Go on.")])
    session = make_session(model, ScriptedEngine(template, script))
    session.start([user_message("What does the lamp cost?")])
    for messages in shown:
        await session.turn()
        session.observe(messages)
    return session, template
