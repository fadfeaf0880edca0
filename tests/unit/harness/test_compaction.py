"""Conversations that fill their context and go on from a summary, and what the notebook brings along."""

import json

import pytest
from mcp.server import MCPServer

from seatrial_api.outcome import Outcome
from seatrial_rollout.harness.record import HarnessRecord
from tests.agents import Harness, MemorySandbox

TODO = [
    {"task": "look the lamp up", "status": "done"},
    {"task": "write the answer", "status": "doing"},
    {"task": "check"},
]
SUMMARY = "The lamp costs 7; it is not written yet."


def long_call(harness: Harness, length: int = 900) -> str:
    """A call whose answer brings the context to where the agent is asked to sum up."""
    return harness.call("office_print_text", length=length)


async def sums_up(harness: Harness, office: MCPServer, script: list[str], *, notebook: bool = False) -> HarnessRecord:
    return await harness.run(
        script,
        {"office": office},
        compaction=True,
        notebook=notebook,
        context_length=8000 if notebook else 2400,
        limits={"context_nudge_fraction": 0.6},
    )


async def test_a_full_context_is_summed_up_and_the_work_goes_on_in_a_sequence_of_its_own(
    harness: Harness, office: MCPServer
) -> None:
    record = await sums_up(harness, office, [long_call(harness), SUMMARY, "It costs 7."])
    assert (record.outcome, record.final_answer) == (Outcome.COMPLETED, "It costs 7.")
    assert [sequence.parent for sequence in record.sequences] == [None, 0]
    assert [turn.sequence for turn in record.turns] == [0, 0, 1]
    assert sum(sequence.num_sampled for sequence in record.sequences) == sum(t.stop - t.start for t in record.turns)
    assert "answer with a summary" in harness.given_text(record)
    after = harness.given_text(record, 1)
    assert "What does the lamp cost?" in after
    assert SUMMARY in after
    assert "zzz" not in after


async def test_it_is_summed_up_as_often_as_it_takes(harness: Harness, office: MCPServer) -> None:
    record = await sums_up(harness, office, [long_call(harness), "One.", long_call(harness), "Two.", "It costs 7."])
    assert [sequence.parent for sequence in record.sequences] == [None, 0, 1]
    assert ("One." in harness.given_text(record, 2), "Two." in harness.given_text(record, 2)) == (False, True)


async def test_calls_beside_a_summary_are_not_made_and_the_trace_says_so(harness: Harness, office: MCPServer) -> None:
    told = f"{SUMMARY}\n{harness.call('office_lookup', row='table')}"
    record = await sums_up(harness, office, [long_call(harness), told, "It costs 7."])
    (call,) = record.turns[1].tool_calls
    assert (call.tool, call.is_error) == ("lookup", True)
    assert "a summary was asked for" in call.result
    assert SUMMARY in harness.given_text(record, 1)


async def test_without_compaction_the_agent_is_told_to_finish(harness: Harness, office: MCPServer) -> None:
    limits = {"context_nudge_fraction": 0.6}
    script = [long_call(harness), "It costs 7."]
    record = await harness.run(script, {"office": office}, context_length=2400, limits=limits)
    assert "give your final answer" in harness.given_text(record)
    assert len(record.sequences) == 1


async def test_todo_and_notes_are_in_the_new_beginning(harness: Harness, office: MCPServer) -> None:
    script = [
        harness.call("notebook_write_todo", items=TODO),
        harness.call("notebook_write_notes", text="prices.csv has no header"),
        long_call(harness, 3000),
        SUMMARY,
        "It costs 7.",
    ]
    record = await sums_up(harness, office, script, notebook=True)
    after = harness.given_text(record, 1)
    assert "Your todo list:\n- [x] look the lamp up\n- [~] write the answer\n- [ ] check\n" in after
    assert "Your notes:\nprices.csv has no header]" in after
    assert record.turns[0].tool_calls[0].result == "The todo list has 3 items, 2 of them not done."


async def test_the_notebook_is_two_files_in_the_sandbox_that_others_may_write_too(harness: Harness) -> None:
    sandbox = MemorySandbox({})
    script = [harness.call("notebook_write_todo", items=TODO[2:]), harness.call("notebook_read"), "Done."]
    sandbox.uploads["/logs/agent/notes.md"] = "written by a shell"
    record = await harness.run(script, sandbox=sandbox, notebook=True)
    assert sandbox.uploads["/logs/agent/todo.md"] == "- [ ] check\n"
    read = record.turns[1].tool_calls[0].result
    assert read == "Your todo list:\n- [ ] check\n\nYour notes:\nwritten by a shell"


@pytest.mark.parametrize(
    ("tool", "arguments", "lesson"),
    [
        (
            "write_todo",
            {"items": [{"task": "a"}, {"status": "done"}]},
            "items.1.task: Field required",
        ),
        ("write_todo", {"items": [{"task": "a", "status": "later"}]}, 'Each item: {"task": ..., "status": open'),
        ("write_notes", {"text": "n" * 8001}, "8001 characters are too many; keep to 8000"),
    ],
)
async def test_what_cannot_be_noted_is_answered_with_what_would_be_right(
    harness: Harness, tool: str, arguments: dict[str, object], lesson: str
) -> None:
    record = await harness.run([harness.call(f"notebook_{tool}", **arguments), "Done."], notebook=True)
    (call,) = record.turns[0].tool_calls
    assert (call.is_error, json.loads(call.arguments)) == (True, arguments)
    assert lesson in call.result


async def test_there_is_no_notebook_unless_it_is_asked_for(harness: Harness, office: MCPServer) -> None:
    record = await harness.run(["It costs 7."], {"office": office})
    assert "notebook" not in harness.given_text(record)
