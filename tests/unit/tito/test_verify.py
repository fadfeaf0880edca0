"""Verification finds every single thing that can be wrong with a stored trajectory."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial_api.trajectory import Trajectory
from seatrial_rollout.tito.verify import Fault, verify
from tests.chat_models import ChatModel
from tests.conversations import make_session, tool_message, trajectory_of, user_message
from tests.scripted_engine import ScriptedEngine


def make_trajectory(model: ChatModel, history: Any = "AsTemplate") -> Trajectory:
    """Two sequences: a tool call and an answer with reasoning, then a second question."""
    think = "<think>\nHm.\n</think>\n\n" if model.family.name == "qwen3" else ""
    script = [think + model.family.text_of_call("sheets_lookup", {"row": "lamp"}), "7", "Yes."]
    session = make_session(model, ScriptedEngine(model.template, script), history=history)

    async def talk() -> Trajectory:
        session.start([user_message("What does the lamp cost?")])
        turns = [await session.turn()]
        session.observe([tool_message("7")])
        turns.append(await session.turn())
        session.observe([user_message("Sure?")])
        turns.append(await session.turn())
        return trajectory_of(session, turns)

    return asyncio.run(talk())


@pytest.fixture(scope="module")
def trajectory(chat_models: dict[str, ChatModel]) -> Trajectory:
    return make_trajectory(chat_models["qwen3"])


def changed(trajectory: Trajectory, sequence: int, column: str, position: int, value: Any) -> Trajectory:
    """The trajectory with one entry of one list replaced."""
    sequences = list(trajectory.sequences)
    entries = list(getattr(sequences[sequence], column))
    entries[position] = value
    sequences[sequence] = sequences[sequence].model_copy(update={column: entries})
    return trajectory.model_copy(update={"sequences": sequences})


def test_a_trajectory_as_it_was_recorded_has_no_fault(qwen3: ChatModel, trajectory: Trajectory) -> None:
    assert len(trajectory.sequences) == 2
    assert verify(trajectory, qwen3.template) == []


def test_a_trajectory_survives_being_stored(qwen3: ChatModel, trajectory: Trajectory) -> None:
    stored = Trajectory.model_validate_json(trajectory.model_dump_json(by_alias=True))
    assert verify(stored, qwen3.template) == []


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_entry_goes_unnoticed(qwen3: ChatModel, trajectory: Trajectory, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(trajectory.sequences) - 1))
    sequence = trajectory.sequences[index]
    position = data.draw(st.integers(0, len(sequence.token_ids) - 1))
    column = data.draw(st.sampled_from(["token_ids", "loss_mask", "logprobs", "weight_versions"]))
    is_sampled = sequence.loss_mask[position] == 1
    value: Any = {
        "token_ids": (sequence.token_ids[position] + 1) % 200 + 33,
        "loss_mask": 0 if is_sampled else 1,
        "logprobs": 0.5 if is_sampled else -0.5,
        "weight_versions": -1 if is_sampled else 3,
    }[column]
    faults = verify(changed(trajectory, index, column, position, value), qwen3.template)
    assert index in {fault.sequence for fault in faults}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.01])
def test_a_log_probability_that_is_none_is_told_with_its_place(
    qwen3: ChatModel, trajectory: Trajectory, value: float
) -> None:
    start = trajectory.turns[0].start
    faults = verify(changed(trajectory, 0, "logprobs", start, value), qwen3.template)
    assert faults == [Fault(0, start, f"a sampled token has log-probability {value}")]
    assert str(faults[0]) == f"sequence 0, token {start}: a sampled token has log-probability {value}"


def test_a_wrong_text_is_told(qwen3: ChatModel, trajectory: Trajectory) -> None:
    turns = [trajectory.turns[0].model_copy(update={"text": "else"}), *trajectory.turns[1:]]
    (fault,) = verify(trajectory.model_copy(update={"turns": turns}), qwen3.template)
    assert "its text is 'else'" in fault.problem


def test_a_missing_turn_leaves_its_tokens_without_an_owner(qwen3: ChatModel, trajectory: Trajectory) -> None:
    faults = verify(trajectory.model_copy(update={"turns": trajectory.turns[1:]}), qwen3.template)
    assert Fault(0, trajectory.turns[0].start, "the mask is 1, but 0 turns hold the token") in faults


def test_a_token_in_two_turns_is_told(qwen3: ChatModel, trajectory: Trajectory) -> None:
    twice = [trajectory.turns[0], *trajectory.turns]
    faults = verify(trajectory.model_copy(update={"turns": twice}), qwen3.template)
    assert Fault(0, trajectory.turns[0].start, "the mask is 1, but 2 turns hold the token") in faults


def test_a_turn_outside_of_its_sequence_is_told(qwen3: ChatModel, trajectory: Trajectory) -> None:
    turns = [*trajectory.turns[:-1], trajectory.turns[-1].model_copy(update={"stop": 10_000})]
    faults = verify(trajectory.model_copy(update={"turns": turns}), qwen3.template)
    assert "outside of its sequence" in faults[0].problem


def test_given_tokens_that_no_span_explains_are_told(qwen3: ChatModel, trajectory: Trajectory) -> None:
    faults = verify(
        trajectory.model_copy(update={"given": trajectory.given[:1] + trajectory.given[2:]}), qwen3.template
    )
    assert any("the one before it ended at" in fault.problem for fault in faults)


def test_other_messages_than_those_that_were_given_are_told(qwen3: ChatModel, trajectory: Trajectory) -> None:
    span = trajectory.given[1]
    other = span.model_copy(update={"messages": span.messages.replace('"7"', '"8"')})
    given_spans = [trajectory.given[0], other, *trajectory.given[2:]]
    (fault,) = verify(trajectory.model_copy(update={"given": given_spans}), qwen3.template)
    assert span.start < fault.position < span.stop
    assert "differ from the template's" in fault.problem


@pytest.mark.parametrize("messages", ["", "{", "[]", '[{"role": "user"}]', "3"])
def test_messages_that_cannot_be_read_are_told(qwen3: ChatModel, trajectory: Trajectory, messages: str) -> None:
    span = trajectory.given[1].model_copy(update={"messages": messages})
    given_spans = [trajectory.given[0], span, *trajectory.given[2:]]
    faults = verify(trajectory.model_copy(update={"given": given_spans}), qwen3.template)
    assert faults[0].sequence == 0


def test_a_branch_that_inherits_too_much_is_told(chat_models: dict[str, ChatModel]) -> None:
    hermes = chat_models["hermes"]
    trajectory = make_trajectory(hermes)
    assert verify(trajectory, hermes.template) == []
    (branch,) = [span for span in trajectory.given if span.sequence == 1 and span.start > 0]
    later = branch.model_copy(update={"start": branch.start + 1})
    given_spans = [later if span is branch else span for span in trajectory.given]
    faults = verify(trajectory.model_copy(update={"given": given_spans}), hermes.template)
    assert any("tokens are inherited; the template leaves" in fault.problem for fault in faults)


def test_a_parent_that_does_not_come_before_is_told(qwen3: ChatModel, trajectory: Trajectory) -> None:
    sequences = [trajectory.sequences[0], trajectory.sequences[1].model_copy(update={"parent": 1})]
    faults = verify(trajectory.model_copy(update={"sequences": sequences}), qwen3.template)
    assert Fault(1, 0, "the parent is sequence 1, which does not come before") in faults


def test_a_harness_without_spans_is_checked_without_the_template(qwen3: ChatModel, trajectory: Trajectory) -> None:
    bare = trajectory.model_copy(update={"given": []})
    assert verify(bare, qwen3.template) == []
    assert verify(changed(bare, 0, "loss_mask", 0, 1), qwen3.template) != []


def test_the_day_of_the_rollout_is_the_day_of_the_check(chat_models: dict[str, ChatModel]) -> None:
    llama = chat_models["llama3"]
    trajectory = make_trajectory(llama, "Keep")
    later = llama.template.at(llama.template.now.replace(year=llama.template.now.year + 1, day=1))
    assert verify(trajectory, later) == []


def test_a_trajectory_without_tokens_has_no_fault(qwen3: ChatModel, trajectory: Trajectory) -> None:
    empty = trajectory.model_copy(update={"sequences": [], "turns": [], "given": []})
    assert verify(empty, qwen3.template) == []
