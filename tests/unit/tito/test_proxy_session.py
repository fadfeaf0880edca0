"""Whatever an agent does to its conversations, each sampled token is in the log once, behind what led to it."""

import asyncio
import json
from typing import override

import pytest

from seatrial_api.errors import TransientError
from seatrial_api.spec.harness import Sampling
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.proxy.errors import (
    BudgetSpentError,
    ContextOverflowError,
    InvalidRequestError,
    NoEngineError,
    RequestError,
)
from seatrial_rollout.tito.proxy.exchange import ChatRequest
from seatrial_rollout.tito.proxy.reading import assistant
from seatrial_rollout.tito.template import Message
from seatrial_rollout.tito.verify import verify
from tests.agent_sessions import Agent, agent_session, answer, check, echo, parents, user
from tests.chat_models import ChatModel
from tests.scripted_engine import Said, ScriptedEngine

ASKED: list[Message] = [{"role": "system", "content": "You are an agent."}, user("What does the lamp cost?")]


async def test_a_conversation_that_only_grows_is_one_sequence(model: ChatModel) -> None:
    agent = Agent(model, [])
    agent.engine.follow([agent.call("lamp"), agent.call("table"), "7"])
    first = await agent.ask(ASKED)
    second = await agent.ask([*ASKED, echo(first), answer(first, "3")])
    last = await agent.ask([*ASKED, echo(first), answer(first, "3"), echo(second), answer(second, "4")])
    assert last.content == "7"
    assert parents(agent.session) == [None]
    sampled = [made for turn in agent.engine.made for made in turn]
    (sequence,) = agent.session.sequences()
    assert [t for t, mask in zip(sequence.token_ids, sequence.loss_mask, strict=True) if mask] == sampled


async def test_a_turn_is_known_by_its_calls_however_the_client_writes_them(qwen3: ChatModel) -> None:
    agent = Agent(
        qwen3, ['<think>\nHm.\n</think>\n\n<tool_call>{"name":"lookup","arguments":{"row":"ü"}}</tool_call>', "7"]
    )
    first = await agent.ask(ASKED)
    assert first.reasoning == "Hm."
    rewritten = assistant(" ", [(first.calls[0].call_id, "invalid", '{"row": "\\u00fc", "tool": "lookup"}')])
    await agent.ask([*ASKED, rewritten, answer(first, "7")])
    assert parents(agent.session) == [None]


async def test_a_turn_without_a_call_is_known_by_its_place_and_what_it_says(model: ChatModel) -> None:
    agent = Agent(model, ["It costs 7.", "Yes."])
    await agent.ask(ASKED)
    await agent.ask([*ASKED, assistant("It costs 7.\n", []), user("Sure?")])
    assert parents(agent.session) == [None]


async def test_turns_that_no_tokenizer_would_write_come_back_as_they_were_sampled(qwen3: ChatModel) -> None:
    engine = ScriptedEngine(qwen3.template, ["It costs 7.", "Yes."], in_bytes=True)
    agent = Agent(qwen3, [])
    agent.session = agent_session(qwen3, engine)
    first = await agent.ask(ASKED)
    await agent.ask([*ASKED, echo(first), user("Sure?")])
    prompt = engine.requests[1].token_ids
    assert engine.made[0] == prompt[len(engine.requests[0].token_ids) :][: len(engine.made[0])]
    assert engine.made[0][:-1] != qwen3.template.encode("It costs 7.")


async def test_a_retry_is_answered_from_the_log(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7"])
    first = await agent.ask(ASKED, is_got=False)
    assert await agent.ask(ASKED) is first
    assert await agent.ask(ASKED, is_retry=True) is first
    assert agent.session.num_turns == 1


async def test_asking_the_same_again_after_an_answer_brings_another_one(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7", "8"])
    await agent.ask(ASKED)
    assert (await agent.ask(ASKED)).content == "8"
    assert parents(agent.session) == [None, 0]


async def test_a_retry_while_the_engine_works_waits_for_the_one_turn(qwen3: ChatModel) -> None:
    engine = HeldEngine(qwen3)
    session = agent_session(qwen3, engine)
    first, second = session.ask(ChatRequest(ASKED)), session.ask(ChatRequest(ASKED))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(session.answer(first))
        tasks.create_task(session.answer(second))
        await engine.asked.acquire()
        engine.release.set()
    assert first is second
    assert session.num_turns == 1


async def test_a_dropped_turn_stays_in_a_sequence_of_its_own(model: ChatModel) -> None:
    agent = Agent(model, [])
    agent.engine.follow([agent.call("lamp"), "no call", "7"])
    first = await agent.ask(ASKED)
    known = [*ASKED, echo(first), answer(first, "3")]
    await agent.ask(known)
    await agent.ask([*known, user("Call a tool.")])
    assert parents(agent.session) == [None, 0]
    trunk, branch = agent.session.sequences()
    inherited = agent.session.given()[-1].start
    assert branch.token_ids[:inherited] == trunk.token_ids[:inherited]
    assert sum(branch.loss_mask[:inherited]) == 0


async def test_a_question_aside_is_a_sequence_of_its_own(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7", "A title", "Yes."])
    first = await agent.ask(ASKED)
    await agent.ask([user("Find a title.")], tools=[])
    await agent.ask([*ASKED, echo(first), user("Sure?")])
    assert parents(agent.session) == [None, 0]
    assert [turn.sequence for turn in agent.session.turns()] == [0, 1, 0]


async def test_two_that_go_on_from_one_turn_at_once_get_a_sequence_each(qwen3: ChatModel) -> None:
    engine = HeldEngine(qwen3)
    engine.release.set()
    session = agent_session(qwen3, engine)
    first = session.ask(ChatRequest(ASKED))
    await session.answer(first)
    engine.release.clear()
    known = [*ASKED, echo(first.reply)]
    async with asyncio.TaskGroup() as tasks:
        for words in ("One.", "Two."):
            tasks.create_task(session.answer(session.ask(ChatRequest([*known, user(words)]))))
        for _ in range(3):
            await engine.asked.acquire()
        engine.release.set()
    assert parents(session) == [None, 0]
    check(session, qwen3)


async def test_a_turn_that_the_policy_never_wrote_is_given_to_it(model: ChatModel) -> None:
    agent = Agent(model, ["7", "Yes."])
    first = await agent.ask(ASKED)
    await agent.ask([*ASKED, echo(first), user("Sure?"), assistant("Let me think.", []), user("Go on.")])
    assert parents(agent.session) == [None]
    given_text = model.template.decode(agent.engine.requests[1].token_ids)
    assert "Let me think." in given_text


async def test_compaction_goes_on_in_another_sequence(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [])
    agent.engine.follow([agent.call("lamp"), "It cost 7.", "Done."])
    first = await agent.ask(ASKED)
    known = [*ASKED, echo(first), answer(first, "3")]
    summary = await agent.ask([*known, user("Summarise.")])
    await agent.ask([ASKED[0], user(f"So far: {summary.content}"), user("Go on.")])
    assert parents(agent.session) == [None, 0]


async def test_pruned_answers_of_tools_branch_off_before_them(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [])
    agent.engine.follow([agent.call("lamp"), "7", "8"])
    first = await agent.ask(ASKED)
    second = await agent.ask([*ASKED, echo(first), answer(first, "a long answer")])
    await agent.ask([*ASKED, echo(first), answer(first, "[pruned]"), echo(second), user("Sure?")])
    assert parents(agent.session) == [None, 0]


async def test_other_tools_are_another_conversation(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7", "Yes."])
    first = await agent.ask(ASKED)
    await agent.ask([*ASKED, echo(first), user("Sure?")], tools=[])
    assert parents(agent.session) == [None, 0]


async def test_history_as_the_template_has_it_starts_a_sequence_where_reasoning_goes(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["<think>\nHm.\n</think>\n\n7", "Yes."], history="AsTemplate")
    first = await agent.ask(ASKED)
    await agent.ask([*ASKED, echo(first), user("Sure?")])
    assert parents(agent.session) == [None, 0]
    assert "Hm." not in qwen3.template.decode(agent.engine.requests[1].token_ids)


async def test_history_that_is_kept_keeps_reasoning_that_the_client_lost(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["<think>\nHm.\n</think>\n\n7", "Yes."])
    first = await agent.ask(ASKED)
    await agent.ask([*ASKED, echo(first), user("Sure?")])
    assert parents(agent.session) == [None]
    assert "Hm." in qwen3.template.decode(agent.engine.requests[1].token_ids)


async def test_a_malformed_call_is_told_as_text(qwen3: ChatModel) -> None:
    bad = '<tool_call>\n{"name": "lookup", "arguments": {"row": \n</tool_call>'
    agent = Agent(qwen3, [bad, "7"])
    first = await agent.ask(ASKED)
    assert (first.content, first.calls) == (bad, [])
    await agent.ask([*ASKED, echo(first), user("That was no call.")])
    assert parents(agent.session) == [None]


async def test_a_text_that_ends_a_turn_is_left_out_and_what_follows_never_logged(model: ChatModel) -> None:
    agent = Agent(model, ["It costs 7. OBSERVATION: none", "Yes."])
    first = await agent.ask(ASKED, stop=("OBSERVATION", "never"))
    assert (first.content, first.stop, first.is_cut) == ("It costs 7.", "OBSERVATION", False)
    (turn,) = agent.session.turns()
    assert "OBSERVATION" in turn.text
    assert "none" not in turn.text
    await agent.ask([*ASKED, echo(first), user("Sure?")])
    assert parents(agent.session) == [None]


async def test_where_one_call_is_wanted_a_turn_ends_behind_its_first_and_the_rest_is_never_logged(
    model: ChatModel,
) -> None:
    both = model.family.text_of_calls([("lookup", {"row": "lamp"}), ("lookup", {"row": "table"})])
    agent = Agent(model, [both, "It costs 7."])
    first = await agent.ask(ASKED, is_single_call=True)
    assert [json.loads(call.arguments) for call in first.calls] == [{"row": "lamp"}]
    assert (first.is_cut, "table" in agent.session.turns()[0].text) == (False, False)
    await agent.ask([*ASKED, echo(first), answer(first, "7")], is_single_call=True)
    assert parents(agent.session) == [None]


async def test_a_turn_with_one_call_is_whole_where_one_is_wanted(model: ChatModel) -> None:
    agent = Agent(model, [])
    agent.engine.follow([agent.call("lamp")])
    await agent.ask(ASKED, is_single_call=True)
    ((*_, last_token),) = agent.engine.made
    assert agent.session.sequences()[0].token_ids[-1] == last_token


async def test_a_turn_that_was_cut_goes_on_in_its_sequence(model: ChatModel) -> None:
    agent = Agent(model, ["It costs 7 and not 8, as one might think.", "Yes."])
    first = await agent.ask(ASKED, max_tokens=4)
    assert first.is_cut
    assert first.usage.completion_tokens == 4
    await agent.ask([*ASKED, echo(first), user("Sure?")])
    assert parents(agent.session) == [None]


async def test_the_run_says_how_tokens_are_drawn_unless_it_leaves_that_to_the_agent(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7"])
    await agent.ask(ASKED, temperature=0.0, top_p=0.5)
    assert (agent.engine.requests[0].temperature, agent.engine.requests[0].top_p) == (1.0, 1.0)
    free = Agent(qwen3, ["7", "8"], sampling=None)
    await free.ask(ASKED, temperature=0.0, top_p=0.5)
    await free.ask([user("And the table?")])
    assert [(asked.temperature, asked.top_p) for asked in free.engine.requests] == [(0.0, 0.5), (1.0, 1.0)]
    evaluated = Agent(qwen3, ["7"], sampling=Sampling(temperature=0.6))
    await evaluated.ask(ASKED)
    assert evaluated.engine.requests[0].temperature == 0.6


async def test_a_conversation_that_fills_the_context_is_refused_and_leaves_no_trace(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7"], context_length=200)
    with pytest.raises(ContextOverflowError) as refused:
        await agent.ask([user("word " * 500)])
    assert refused.value.num_tokens > refused.value.limit == 200
    assert agent.session.sequences() == []
    assert isinstance(agent.session.refusal, ContextOverflowError)


async def test_a_turn_ends_where_the_context_does(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["word " * 1000], context_length=500)
    reply = await agent.ask(ASKED)
    assert reply.is_cut
    assert reply.usage.prompt_tokens + reply.usage.completion_tokens == 500


async def test_turns_and_requests_are_capped(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7", "8"], max_turns=2)
    await agent.ask([user("One?")])
    await agent.ask([user("Two?")])
    with pytest.raises(BudgetSpentError, match="2 turns"):
        await agent.ask([user("Three?")])
    for _ in range(5):
        await agent.ask([user("One?")], is_retry=True)
    with pytest.raises(BudgetSpentError, match="8 requests"):
        await agent.ask([user("One?")], is_retry=True)


async def test_a_turn_that_failed_may_be_asked_for_again(qwen3: ChatModel) -> None:
    class Faltering(ScriptedEngine):
        @override
        async def generate(self, request: GenerationRequest) -> Generation:
            if not self.requests:
                self.requests.append(request)
                raise TransientError("all engines are down")
            return await super().generate(request)

    agent = Agent(qwen3, [], max_turns=1)
    agent.session = agent_session(qwen3, Faltering(qwen3.template, ["7"]), max_turns=1)
    with pytest.raises(NoEngineError, match="down"):
        await agent.ask(ASKED)
    assert (await agent.ask(ASKED)).content == "7"
    assert agent.session.refusal is None


@pytest.mark.parametrize("said", [Said("7", finish_reason="abort"), Said("", finish_reason="length")])
async def test_what_is_no_turn_is_an_engines_fault(qwen3: ChatModel, said: Said) -> None:
    with pytest.raises(NoEngineError, match="ended a turn"):
        await Agent(qwen3, [said]).ask(ASKED)


async def test_a_fault_of_ours_is_told_and_does_not_break_the_session(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [])
    with pytest.raises(RequestError, match="Error"):
        await agent.ask(ASKED)
    agent.engine.follow(["7"])
    assert (await agent.ask(ASKED)).content == "7"


async def test_a_conversation_has_to_end_with_something_to_answer(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7"])
    first = await agent.ask(ASKED)
    with pytest.raises(InvalidRequestError, match="must end"):
        await agent.ask([*ASKED, echo(first)])


async def test_what_tools_answered_is_kept_with_the_turn_that_called_them(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [])
    agent.engine.follow([agent.call("lamp"), agent.call("table")])
    first = await agent.ask(ASKED)
    await agent.ask([*ASKED, echo(first), answer(first, "no such row") | {"is_error": True}])
    (call,), unanswered = (turn.tool_calls for turn in agent.session.turns())
    assert (call.tool, call.arguments, call.result, call.is_error) == ("lookup", '{"row": "lamp"}', "no such row", True)
    assert call.duration_seconds >= 0
    assert unanswered == []
    assert "is_error" not in agent.session.given()[1].messages


async def test_waiting_for_engines_is_told(qwen3: ChatModel) -> None:
    waits: list[float] = []
    agent = Agent(qwen3, [Said("7", waited_seconds=5.0)], on_wait=waits.append)
    await agent.ask(ASKED)
    (waited,) = waits
    assert waited < 5.0  # no more than the call took


class HeldEngine:
    """Says 7 once it is released."""

    def __init__(self, model: ChatModel) -> None:
        self._engine = ScriptedEngine(model.template, iter(lambda: "7", ""))
        self.asked = asyncio.Semaphore(0)
        self.release = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Wait, and say it."""
        self.asked.release()
        await self.release.wait()
        return await self._engine.generate(request)


async def branched(model: ChatModel) -> Trajectory:
    """A trajectory whose second sequence goes on behind the first turn of the first one."""
    agent = Agent(model, [])
    agent.engine.follow([agent.call("lamp"), "7", "8"])
    first = await agent.ask(ASKED)
    for words in ("3", "4"):
        await agent.ask([*ASKED, echo(first), answer(first, words)])
    return check(agent.session, model)


async def test_verification_finds_a_branch_that_inherits_other_tokens(qwen3: ChatModel) -> None:
    trajectory = await branched(qwen3)
    trajectory.sequences[1].token_ids[5] += 1
    assert "are not those of the parent" in verify(trajectory, qwen3.template)[0].problem


async def test_verification_finds_a_branch_where_no_turn_ends(qwen3: ChatModel) -> None:
    trajectory = await branched(qwen3)
    branch = trajectory.given[-1]
    assert branch.continues
    moved = [*trajectory.given[:-1], branch.model_copy(update={"start": branch.start - 1})]
    faults = verify(trajectory.model_copy(update={"given": moved}), qwen3.template)
    assert any("where no turn of its parent ends" in fault.problem for fault in faults)


async def test_verification_finds_a_branch_without_a_parent(qwen3: ChatModel) -> None:
    trajectory = await branched(qwen3)
    trajectory.sequences[1] = trajectory.sequences[1].model_copy(update={"parent": None})
    faults = verify(trajectory, qwen3.template)
    assert any("names no parent that comes before" in fault.problem for fault in faults)


async def test_verification_finds_other_messages_behind_a_branch(qwen3: ChatModel) -> None:
    trajectory = await branched(qwen3)
    branch = trajectory.given[-1]
    other = branch.model_copy(update={"messages": branch.messages.replace('"4"', '"5"')})
    (fault,) = verify(trajectory.model_copy(update={"given": [*trajectory.given[:-1], other]}), qwen3.template)
    assert "differ from the template's" in fault.problem
