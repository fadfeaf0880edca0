"""Budgets of single tools: which holds, what the model is told, what is kept."""

import pytest
from mcp.server import MCPServer

from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import ToolBudget
from seatrial_rollout.harness.tool_budgets import ToolBudgets
from tests.agents import Harness


def test_the_first_pattern_that_matches_holds_and_each_tool_is_counted_apart() -> None:
    budgets = ToolBudgets([ToolBudget(tool="a_read", timeout_seconds=3), ToolBudget(tool="a_*", max_calls=2)])
    budgets.spend("a_write")
    names = ("a_read", "a_write", "a_move", "b_read")
    assert [budgets.calls_left(name) for name in names] == [None, 1, 2, None]
    assert [budgets.seconds(name) for name in names] == [3, None, None, None]


@pytest.mark.parametrize(
    ("num_moved", "left"),
    [(0, "a_move (1 more), 1 tool without a limit"), (1, "1 tool without a limit")],
)
def test_a_spent_budget_is_told_with_what_is_left(num_moved: int, left: str) -> None:
    budgets = ToolBudgets([ToolBudget(tool="a_*", max_calls=1)])
    budgets.spend("a_write")
    for _ in range(num_moved):
        budgets.spend("a_move")
    told = budgets.refusal("a_write", ("a_write", "a_move", "b_read"))
    assert told == f"a_write was not called: the budget of 1 calls is spent. Left: {left}"


async def test_calls_beyond_the_budget_are_not_made_and_the_model_reads_why(harness: Harness) -> None:
    made: list[str] = []
    server = MCPServer("log")

    @server.tool()
    def note(word: str) -> str:
        made.append(word)
        return f"noted {word}"

    script = [harness.call("log_note", word=word) for word in ("one", "two", "three")]
    limits = {"tools": [{"tool": "log_*", "max_calls": 2}]}
    record = await harness.run([*script, "Done."], {"log": server}, limits=limits)
    refused = record.turns[2].tool_calls[0]
    assert made == ["one", "two"]
    assert record.outcome is Outcome.COMPLETED
    assert refused.is_error
    assert refused.result.endswith("the budget of 2 calls is spent. Left: no tool; give your final answer")
    assert refused.result in harness.given_text(record)


async def test_a_call_that_was_refused_for_its_arguments_costs_nothing(harness: Harness, office: MCPServer) -> None:
    script = [harness.call("office_lookup"), harness.call("office_lookup", row="lamp"), "It costs 7."]
    limits = {"tools": [{"tool": "office_lookup", "max_calls": 1}]}
    record = await harness.run(script, {"office": office}, limits=limits)
    assert [turn.tool_calls[0].is_error for turn in record.turns[:2]] == [True, False]


async def test_a_call_beyond_its_tools_time_is_given_up_and_the_work_goes_on(
    harness: Harness, hanging: MCPServer
) -> None:
    limits = {"tools": [{"tool": "slow_hang", "timeout_seconds": 0.1}]}
    script = [harness.call("slow_hang"), "It does not answer."]
    record = await harness.run(script, {"slow": hanging}, limits=limits)
    (call,) = record.turns[0].tool_calls
    assert (record.outcome, call.is_error) == (Outcome.COMPLETED, True)
    assert call.result == "no answer within 0.1 s, the most that a call of slow_hang may take; it was given up"
