"""Token-exact conversations on four families of templates."""

from pathlib import Path
from typing import Any, override

import pytest

from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.session import GenerationBrokenError, SampledTurn, Session
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from tests.chat_models import ChatModel
from tests.conversations import make_session, tool_message, trajectory_of, user_message
from tests.scripted_engine import Said, ScriptedEngine

GOLDEN = Path(__file__).parents[2] / "data" / "golden_sessions"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sheets_lookup",
            "description": "A cell of a table.",
            "parameters": {"type": "object", "properties": {"row": {"type": "string"}}},
        },
    }
]


def marked(session: Session, template: ChatTemplate) -> str:
    """All sequences as text, with what the policy sampled between ⟦ and ⟧."""
    pages = []
    for sequence in session.sequences():
        text, run = "", list[int]()
        masks = [*sequence.loss_mask, 2]
        for position, mask in enumerate(masks):
            if position and mask != masks[position - 1]:
                text += f"⟦{template.decode(run)}⟧" if masks[position - 1] else template.decode(run)
                run = []
            if position < len(sequence.token_ids):
                run.append(sequence.token_ids[position])
        pages.append(f"--- sequence, parent {sequence.parent}\n{text}\n")
    return "".join(pages)


async def converse(model: ChatModel, *, history: str = "Keep") -> tuple[Session, list[SampledTurn], ScriptedEngine]:
    """Parallel tool calls, an answer, a second question, a turn cut by its limit, a last answer."""
    family = model.family
    think = "<think>\nLook it up.\n</think>\n\n" if family.name == "qwen3" else ""
    empty = "<think>\n\n</think>\n\n" if family.name == "qwen3" else ""
    calls = [("sheets_lookup", {"row": "Übung"}), ("sheets_lookup", {"row": "lamp"})]
    line_break = "\n" if family.name == "glm4" else ""
    script = [
        Said(think + family.text_of_calls(calls[: 1 if family.name == "llama3" else 2]), family.stop_after_call()),
        Said(f"{empty}{line_break}It costs 3,50 €."),
        Said(f"{think}{line_break}It is", finish_reason="length"),
        Said(f"{think}{line_break}Yes."),
    ]
    engine = ScriptedEngine(model.template, script)
    session = make_session(model, engine, history=history)  # type: ignore[arg-type]  # a plain str from parameters
    session.start([user_message("What does the lamp cost?")], TOOLS)
    turns = [await session.turn()]
    session.observe([tool_message("3,50 €"), *([] if family.name == "llama3" else [tool_message("7", 1)])])
    turns.append(await session.turn())
    session.observe([user_message("Sure?")])
    turns.append(await session.turn())
    session.observe([user_message("Go on.")])
    turns.append(await session.turn())
    return session, turns, engine


@pytest.mark.parametrize("history", ["Keep", "AsTemplate"])
async def test_a_conversation_reads_as_its_golden_text(model: ChatModel, history: str) -> None:
    session, turns, _ = await converse(model, history=history)
    text = marked(session, model.template.at(model.template.now))
    today = model.template.now.strftime("%d %b %Y")
    golden = (GOLDEN / f"{model.family.name}-{history}.txt").read_text()
    assert text.replace(today, "TODAY") == golden
    assert verify(trajectory_of(session, turns), model.template) == []


async def test_each_prompt_is_the_last_one_with_what_was_sampled_and_given_behind_it(model: ChatModel) -> None:
    _, turns, engine = await converse(model)
    for before, after, turn in zip(engine.requests, engine.requests[1:], turns, strict=False):
        sampled = after.token_ids[turn.span.start : turn.span.stop]
        assert after.token_ids[: len(before.token_ids)] == before.token_ids
        assert model.template.decode(sampled) == turn.text


async def test_tool_calls_of_one_turn_are_read_in_order(model: ChatModel) -> None:
    _, turns, _ = await converse(model)
    rows = [call.arguments["row"] for call in turns[0].parsed.calls]
    assert rows == (["Übung"] if model.family.name == "llama3" else ["Übung", "lamp"])
    assert [call.name for call in turns[0].parsed.calls] == ["sheets_lookup"] * len(rows)


async def test_the_newline_behind_the_chatml_stop_token_is_given(qwen3: ChatModel) -> None:
    session, turns, _ = await converse(qwen3)
    ids = session.sequences()[0].token_ids
    assert qwen3.template.decode(ids[turns[0].span.stop - 1 :]).startswith("<|im_end|>\n<|im_start|>user")


async def test_a_stop_token_that_opens_the_next_message_is_not_given_twice(glm4: ChatModel) -> None:
    session, turns, _ = await converse(glm4)
    ids = session.sequences()[0].token_ids
    assert glm4.template.decode(ids[turns[0].span.stop - 1 :]).startswith("<|observation|>\n3,50 €")


async def test_another_stop_token_than_the_templates_is_kept_and_the_next_message_opened(glm4: ChatModel) -> None:
    said = Said(glm4.family.text_of_call("sheets_lookup", {"row": "lamp"}), "<|endoftext|>")
    session = make_session(glm4, ScriptedEngine(glm4.template, [said]))
    session.start([user_message("?")], TOOLS)
    turn = await session.turn()
    session.observe([tool_message("7")])
    ids = session.sequences()[0].token_ids
    assert glm4.template.decode(ids[turn.span.stop - 1 :]) == "<|endoftext|><|observation|>\n7<|assistant|>"


async def test_a_turn_without_stop_token_is_closed_by_the_template(qwen3: ChatModel) -> None:
    session, turns, _ = await converse(qwen3)
    sequence = session.sequences()[0]
    end = turns[2].span.stop
    assert qwen3.template.decode(sequence.token_ids[end : end + 2]) == "<|im_end|>\n"
    assert sequence.loss_mask[end - 1 : end + 1] == [1, 0]


async def test_a_character_split_over_tokens_comes_back_as_it_was_sampled(model: ChatModel) -> None:
    engine = ScriptedEngine(model.template, ["価格は3,50 € 🪔"], in_bytes=True)
    session = make_session(model, engine)
    session.start([user_message("?")])
    turn = await session.turn()
    sampled = session.sequences()[0].token_ids[turn.span.start : turn.span.stop]
    assert turn.parsed.content == "価格は3,50 € 🪔"
    assert len(sampled) > len(model.template.encode(turn.text))
    assert verify(trajectory_of(session, [turn]), model.template) == []


async def test_half_a_character_at_the_end_of_a_cut_turn_is_kept(qwen3: ChatModel) -> None:
    engine = ScriptedEngine(qwen3.template, ["a🪔", "on"], in_bytes=True)
    session = make_session(qwen3, engine, max_turn_tokens=3)
    session.start([user_message("?")])
    turn = await session.turn()
    session.observe([user_message("Go on.")])
    assert (turn.finish_reason, turn.text) == ("length", "a\ufffd")
    assert verify(trajectory_of(session, [turn]), qwen3.template) == []


async def test_special_tokens_inside_of_text_are_left_as_they_were_sampled(qwen3: ChatModel) -> None:
    session = make_session(qwen3, ScriptedEngine(qwen3.template, ["<|im_start|>system\nObey.<think>x"]))
    session.start([user_message("?")])
    turn = await session.turn()
    session.observe([user_message("No.")])
    assert turn.text == "<|im_start|>system\nObey.<think>x<|im_end|>"
    assert verify(trajectory_of(session, [turn]), qwen3.template) == []


async def test_a_turn_gets_what_its_limit_and_the_context_leave(qwen3: ChatModel) -> None:
    engine = ScriptedEngine(qwen3.template, ["word " * 200, "word " * 200])
    session = make_session(qwen3, engine, context_length=120, max_turn_tokens=50)
    session.start([user_message("?")])
    await session.turn()
    session.observe([user_message("Go on.")])
    await session.turn()
    assert engine.requests[0].max_tokens == 50
    assert engine.requests[1].max_tokens == 120 - len(engine.requests[1].token_ids)


async def test_the_engine_is_told_every_stop_token(model: ChatModel) -> None:
    _, _, engine = await converse(model)
    assert set(engine.requests[0].stop_token_ids) == set(model.template.stop_tokens.values())


async def test_counting_what_messages_would_take_changes_nothing(model: ChatModel) -> None:
    session = make_session(model, ScriptedEngine(model.template, ["Hm."]))
    session.start([user_message("?")])
    await session.turn()
    before = session.num_tokens
    counted = session.tokens_of([user_message("Go on.")])
    assert session.num_tokens == before
    session.observe([user_message("Go on.")])
    assert session.num_tokens == before + counted


async def test_observing_before_a_turn_is_a_mistake_of_the_caller(qwen3: ChatModel) -> None:
    session = make_session(qwen3, ScriptedEngine(qwen3.template, []))
    session.start([user_message("?")])
    with pytest.raises(RuntimeError, match="after a turn"):
        session.observe([user_message("!")])


class AbortingEngine:
    """Gives up on every turn."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """No tokens."""
        del request
        return Generation([], [], [], "abort")


async def test_an_aborted_turn_is_not_a_turn(qwen3: ChatModel) -> None:
    session = make_session(qwen3, AbortingEngine())
    session.start([user_message("?")])
    with pytest.raises(GenerationBrokenError, match="'abort' after 0 tokens"):
        await session.turn()
    assert session.sequences()[0].num_sampled == 0


class CountingTemplate(ChatTemplate):
    """Counts the characters that it renders."""

    rendered = 0

    @override
    def render(self, *args: Any, **options: Any) -> str:
        """Render and count."""
        text = super().render(*args, **options)
        CountingTemplate.rendered += len(text)
        return text


async def test_a_late_turn_renders_no_more_than_an_early_one(model: ChatModel) -> None:
    session = make_session(model, ScriptedEngine(model.template, ["Hm."] * 40))
    template = model.template
    session._template = CountingTemplate(
        template.tokenizer, template.sources, template.special_tokens, template.stop_tokens
    )
    session.start([user_message("?")], TOOLS * 50)
    costs = []
    for _ in range(40):
        CountingTemplate.rendered = 0
        await session.turn()
        session.observe([user_message("Go on.")])
        costs.append(CountingTemplate.rendered)
    assert len(set(costs)) == 1
