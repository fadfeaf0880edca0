"""The archipelago harness: a scripted policy, real MCP servers."""

import asyncio
from typing import Any

import pytest
from harbor.models.agent.context import AgentContext
from mcp.server import MCPServer

from seatrial_api.errors import TransientError
from seatrial_api.outcome import Outcome
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.harness.errors import EngineFailedError, SandboxFailedError, ToolServerError
from seatrial_rollout.harness.single_turn import SingleTurn
from seatrial_rollout.harness.trial_clock import TrialClock
from tests.agents import Harness, MemorySandbox
from tests.clocks import HeldClock
from tests.scripted_engine import Said, ScriptedEngine


async def test_a_turn_without_a_tool_call_is_the_final_answer(harness: Harness, office: MCPServer) -> None:
    record = await harness.run([harness.call("office_lookup", row="lamp"), "It costs 7."], {"office": office})
    assert (record.outcome, record.final_answer) == (Outcome.COMPLETED, "It costs 7.")
    (call,) = record.turns[0].tool_calls
    assert (call.server, call.tool, call.arguments) == ("office", "lookup", '{"row": "lamp"}')
    assert (call.result, call.is_error) == ("lamp price: 7", False)
    assert "<tool_response>\nlamp price: 7\n</tool_response>" in harness.given_text(record)


async def test_the_final_answer_is_left_in_the_sandbox(harness: Harness) -> None:
    sandbox = MemorySandbox({})
    agent = harness.agent(ScriptedEngine(harness.model.template, ["<think>\nHm.\n</think>\n\nIt costs 7."]), sandbox)
    await agent.setup(sandbox)
    await agent.run("?", sandbox, AgentContext())
    assert sandbox.uploads == {"/logs/agent/final_answer.txt": "It costs 7."}


async def test_a_sandbox_that_does_not_take_the_answer_is_to_blame(harness: Harness) -> None:
    sandbox = MemorySandbox({}, is_broken=True)
    agent = harness.agent(ScriptedEngine(harness.model.template, ["It costs 7."]), sandbox)
    with pytest.raises(SandboxFailedError, match=r"final_answer\.txt could not be written"):
        await agent.run("?", sandbox, AgentContext())
    assert agent.record.outcome is Outcome.SANDBOX_FAILED
    assert len(agent.record.turns) == 1


async def test_parallel_calls_are_made_in_order_and_answered_in_order(harness: Harness) -> None:
    made: list[str] = []
    server = MCPServer("log")

    @server.tool()
    def note(word: str) -> str:
        made.append(word)
        return f"noted {word}"

    calls = "\n".join(harness.call("log_note", word=word) for word in ("first", "second", "third"))
    record = await harness.run([calls, "Done."], {"log": server})
    assert made == ["first", "second", "third"]
    assert [call.result for call in record.turns[0].tool_calls] == ["noted first", "noted second", "noted third"]


async def test_an_error_of_a_tool_is_recorded_and_shown(harness: Harness, office: MCPServer) -> None:
    record = await harness.run([harness.call("office_fail", reason="no such row"), "Sorry."], {"office": office})
    (call,) = record.turns[0].tool_calls
    assert call.is_error
    assert "no such row" in call.result
    assert call.result in harness.given_text(record)


@pytest.mark.parametrize(
    ("name", "arguments", "lesson"),
    [
        ("office_find", {"row": "lamp"}, "there is no tool 'office_find'. Tools: office_lookup, office_fail"),
        ("office_lookup", {}, '"row" is missing. Parameters: row (string), column (string, optional)'),
        ("office_lookup", {"row": 3}, '"row" has to be string, not integer'),
        ("office_lookup", {"row": "a", "tab": "b"}, 'there is no parameter "tab"'),
    ],
)
async def test_a_wrong_call_is_answered_with_what_would_be_right(
    harness: Harness, office: MCPServer, name: str, arguments: dict[str, Any], lesson: str
) -> None:
    record = await harness.run([harness.call(name, **arguments), "Sorry."], {"office": office})
    (call,) = record.turns[0].tool_calls
    assert call.is_error
    assert lesson in call.result
    assert lesson in harness.given_text(record)


async def test_a_long_result_keeps_its_head_and_its_tail(harness: Harness, office: MCPServer) -> None:
    limits = {"tool_result": {"max_chars": 1000, "head_chars": 600, "tail_chars": 300}}
    script = [harness.call("office_print_text", length=5000), "Done."]
    record = await harness.run(script, {"office": office}, limits=limits)
    (call,) = record.turns[0].tool_calls
    assert call.result == "a" * 600 + "\n[... 4100 characters cut ...]\n" + "z" * 300


async def test_a_malformed_call_is_explained_and_the_good_ones_beside_it_are_made(
    harness: Harness, office: MCPServer
) -> None:
    bad = '<tool_call>\n{"name": "office_lookup", "arguments": {"row": }}\n</tool_call>'
    script = [f"{bad}\n{harness.call('office_lookup', row='lamp')}", "Done."]
    record = await harness.run(script, {"office": office})
    assert record.outcome is Outcome.COMPLETED
    assert [call.result for call in record.turns[0].tool_calls] == ["lamp price: 7"]
    assert "this tool call was not made: invalid JSON: Expecting value at character" in harness.given_text(record)


async def test_the_third_malformed_call_ends_the_work(harness: Harness) -> None:
    bad = '<tool_call>\n{"name": "office_lookup"\n</tool_call>'
    record = await harness.run([bad, bad, f"I give up. {bad}", "never said"])
    assert len(record.turns) == 3
    assert (record.outcome, record.final_answer) == (Outcome.COMPLETED, "I give up.")
    assert "a malformed tool call after 2 repairs" in record.detail


async def test_every_step_used_up_ends_the_work(harness: Harness, office: MCPServer) -> None:
    script = [harness.call("office_lookup", row="lamp")] * 3
    record = await harness.run(script, {"office": office}, max_steps=3)
    assert record.outcome is Outcome.STEPS_EXHAUSTED
    assert [len(turn.tool_calls) for turn in record.turns] == [1, 1, 1]


async def test_a_turn_that_reaches_its_limit_without_a_call_is_too_long(harness: Harness) -> None:
    record = await harness.run(["word " * 100], limits={"max_turn_tokens": 30})
    assert (record.outcome, record.turns[0].stop - record.turns[0].start) == (Outcome.TURN_TOO_LONG, 30)


async def test_a_turn_that_reaches_its_limit_behind_a_whole_call_goes_on(harness: Harness, office: MCPServer) -> None:
    call = harness.call("office_lookup", row="lamp")
    num_tokens = len(harness.model.template.encode(call))
    script = [Said(call + " and then on and on", finish_reason="length"), "It costs 7."]
    record = await harness.run(script, {"office": office}, limits={"max_turn_tokens": num_tokens + 3})
    assert record.outcome is Outcome.COMPLETED


async def test_a_call_that_the_turns_limit_cuts_is_a_turn_too_long_not_a_malformed_call(
    harness: Harness, office: MCPServer
) -> None:
    call = harness.call("office_lookup", row="lamp " * 50)
    record = await harness.run([call], {"office": office}, limits={"max_turn_tokens": 40})
    assert (record.outcome, record.turns[0].tool_calls) == (Outcome.TURN_TOO_LONG, [])


async def test_a_full_context_inside_of_a_turn_is_told_from_a_long_turn(harness: Harness) -> None:
    record = await harness.run(["word " * 1000], context_length=200)
    assert record.outcome is Outcome.CONTEXT_EXCEEDED
    assert len(record.sequences[0].token_ids) == 200


async def test_answers_that_do_not_fit_are_not_given(harness: Harness, office: MCPServer) -> None:
    script = [harness.call("office_print_text", length=8000), "never said"]
    record = await harness.run(script, {"office": office}, context_length=1500)
    assert record.outcome is Outcome.CONTEXT_EXCEEDED
    assert len(record.turns) == 1
    assert len(record.sequences[0].token_ids) == record.turns[0].stop


async def test_a_task_that_is_longer_than_the_context_has_no_turn(harness: Harness) -> None:
    record = await harness.run(["never said"], context_length=5)
    assert (record.outcome, record.turns) == (Outcome.CONTEXT_EXCEEDED, [])


async def test_the_nudge_comes_once_inside_of_the_last_tool_message(harness: Harness, office: MCPServer) -> None:
    calls = "\n".join(harness.call("office_print_text", length=length) for length in (10, 900))
    small = harness.call("office_lookup", row="lamp")
    script, limits = [small, calls, small, small, "Done."], {"context_nudge_fraction": 0.6}
    record = await harness.run(script, {"office": office}, context_length=2400, limits=limits)
    text = harness.given_text(record)
    assert record.outcome is Outcome.COMPLETED
    assert text.count("tokens of context are left") == 1
    before, _, after = text.partition("tokens of context are left")
    assert before.count("lamp price: 7") == 1  # not before the long result, and inside of its message
    assert "zz\n\n[Only about " in before
    assert after.partition("</tool_response>")[0].endswith("then give your final answer.]\n")
    # The nudge is the harness's, not the tool's.
    assert all("context are left" not in call.result for turn in record.turns for call in turn.tool_calls)


async def test_no_nudge_where_it_is_switched_off(harness: Harness, office: MCPServer) -> None:
    script = [harness.call("office_print_text", length=900), "Done."]
    limits = {"context_nudge_fraction": 0.0}
    record = await harness.run(script, {"office": office}, context_length=2400, limits=limits)
    assert "context are left" not in harness.given_text(record)


class SlowEngine(ScriptedEngine):
    """Takes 30 s of a held clock for each turn."""

    clock = HeldClock()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Let time pass, then go on as scripted."""
        await self.clock.sleep(30)
        return await super().generate(request)


async def test_charged_time_that_is_used_up_ends_the_work(harness: Harness, office: MCPServer) -> None:
    engine = SlowEngine(harness.model.template, [harness.call("office_lookup", row="lamp")] * 9)
    sandbox = MemorySandbox({"office": office})
    agent = harness.agent(engine, sandbox, clock=TrialClock(100, engine.clock))
    await agent.setup(sandbox)
    await agent.run("?", sandbox, AgentContext())
    assert agent.record.outcome is Outcome.TIME_EXHAUSTED
    assert (len(agent.record.turns), agent.record.charged_seconds) == (4, 120)


async def test_the_verifiers_time_is_not_charged(harness: Harness) -> None:
    engine = SlowEngine(harness.model.template, ["It costs 7."])
    sandbox = MemorySandbox({})
    agent = harness.agent(engine, sandbox, clock=TrialClock(100, engine.clock))
    await agent.run("?", sandbox, AgentContext())
    await engine.clock.sleep(500)
    assert agent.record.charged_seconds == 30


async def test_time_that_an_engine_waited_is_not_charged(harness: Harness) -> None:
    said = Said("It costs 7.", takes_seconds=0.3, waited_seconds=10.0)
    record = await harness.run([said])
    assert record.outcome is Outcome.COMPLETED
    assert record.charged_seconds < 0.3 <= record.turns[0].engine_seconds


async def test_a_tool_that_hangs_beyond_its_timeout_is_a_fault_of_its_server(
    harness: Harness, hanging: MCPServer
) -> None:
    sandbox = MemorySandbox({"slow": hanging})
    engine = ScriptedEngine(harness.model.template, [harness.call("slow_hang")])
    agent = harness.agent(engine, sandbox, limits={"tool_call_timeout_seconds": 0.1})
    await agent.setup(sandbox)
    with pytest.raises(ToolServerError, match=r"MCP server slow: hang gave no answer within 0\.1 s"):
        await agent.run("?", sandbox, AgentContext())
    record = agent.record
    assert record.outcome is Outcome.TOOL_SERVER_FAILED
    (call,) = record.turns[0].tool_calls
    assert (call.is_error, call.duration_seconds) == (True, 0.1)
    harness.check(record)


async def test_time_that_runs_out_inside_of_a_tool_call_is_the_agents(harness: Harness, hanging: MCPServer) -> None:
    record = await harness.run([harness.call("slow_hang")], {"slow": hanging}, clock=TrialClock(0.2))
    assert record.outcome is Outcome.TIME_EXHAUSTED
    assert [call.is_error for call in record.turns[0].tool_calls] == [True]


class FailingEngine:
    """An engine client that has given up."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Fail."""
        del request
        raise TransientError("no engine answered")


async def test_an_engine_that_fails_is_told_from_the_model(harness: Harness) -> None:
    sandbox = MemorySandbox({})
    agent = harness.agent(FailingEngine(), sandbox)
    with pytest.raises(EngineFailedError, match="no engine answered"):
        await agent.run("?", sandbox, AgentContext())
    assert agent.record.outcome is Outcome.ENGINE_FAILED


async def test_an_engine_that_hangs_is_given_up(harness: Harness) -> None:
    sandbox = MemorySandbox({})
    engine = ScriptedEngine(harness.model.template, [Said("late", takes_seconds=60)])
    agent = harness.agent(engine, sandbox, limits={"engine_call_timeout_seconds": 0.1})
    with pytest.raises(EngineFailedError, match=r"no engine finished a turn within 0\.1 s"):
        await agent.run("?", sandbox, AgentContext())


async def test_an_agent_that_is_cut_off_leaves_what_it_did(harness: Harness, office: MCPServer) -> None:
    sandbox = MemorySandbox({"office": office})
    script = [Said(harness.call("office_lookup", row="lamp")), Said("late", takes_seconds=60)]
    engine = ScriptedEngine(harness.model.template, script)
    agent = harness.agent(engine, sandbox)
    await agent.setup(sandbox)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await agent.run("?", sandbox, AgentContext())
    assert agent.record.outcome is Outcome.CANCELLED
    assert [call.result for call in agent.record.turns[0].tool_calls] == ["lamp price: 7"]
    harness.check(agent.record)


async def test_harbor_is_told_the_tokens_if_it_asks_for_them(harness: Harness, office: MCPServer) -> None:
    sandbox = MemorySandbox({"office": office})
    engine = ScriptedEngine(harness.model.template, [harness.call("office_lookup", row="lamp"), "It costs 7."])
    agent = harness.agent(engine, sandbox, collect_rollout_details=True)
    await agent.setup(sandbox)
    context = AgentContext()
    await agent.run("?", sandbox, context)
    (detail,) = context.rollout_details
    assert detail["prompt_token_ids"] == [request.token_ids for request in engine.requests]
    assert context.n_output_tokens == sum(len(ids) for ids in detail["completion_token_ids"])
    assert context.metadata == {"outcome": "Completed", "detail": "", "turns": 2, "sequences": 1}


async def test_the_single_turn_harness_asks_once_and_offers_no_tools(harness: Harness) -> None:
    record = await harness.run(["It costs 7."], kind=SingleTurn)
    assert (record.outcome, record.final_answer, len(record.turns)) == (Outcome.COMPLETED, "It costs 7.", 1)
    assert "<tools>" not in harness.given_text(record)
