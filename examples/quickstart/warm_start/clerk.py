"""A clerk who knows the job but is careless: the policy's only teacher, and the reason that it has much to learn."""

import json
import random
from dataclasses import dataclass, replace
from typing import Any, Protocol

from office.task import Call, Task
from office.vocabulary import COLUMNS, ITEMS, MONTHS, PEOPLE, REPLIES, STATUSES
from office.world import BUDGET, COUNTS, INVOICES, ORDERS, STAFF, STOCK, VENDOR_LIST

_SHEETS = (INVOICES, VENDOR_LIST, BUDGET, STOCK, ORDERS, STAFF)
_WRITE = "filesystem_write_text_file"
FAREWELL = "Done."
"""The turn without a tool call that ends the work."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the clerk goes wrong, as probabilities."""

    shortcut: float = 0.6
    """Per task: skip the step that makes the task more than a look-up."""
    wrong_sheet: float = 0.08
    """Per call on a sheet."""
    wrong_row: float = 0.08
    """Per call on a row."""
    wrong_column: float = 0.12
    """Per call on a column."""
    wrong_value: float = 0.08
    """Per change to a sheet."""
    wrong_file: float = 0.12
    """Per answer: write it to another file."""
    bad_json: float = 0.04
    """Per call: break the syntax."""
    early_end: float = 0.08
    """Per task: call it a day before anything is written."""


FAULTLESS = Habits(*[0.0] * 8)
"""The clerk that the verifiers expect."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool answered."""

    text: str
    is_error: bool


class Desk(Protocol):
    """The tools, laid out over one office."""

    async def answer(self, turn: str) -> Observation:
        """Make the call that an assistant turn asks for, in the words of the agent's harness."""
        ...


def render_call(call: Call) -> str:
    """The turn that makes a call."""
    return f"<tool_call>\n{json.dumps({'name': call.tool, 'arguments': call.arguments})}\n</tool_call>"


async def work(task: Task, desk: Desk, rng: random.Random, habits: Habits) -> list[dict[str, str]]:
    """Let the clerk do a task.

    Returns:
        The conversation after the instruction, as chat messages.
    """
    messages: list[dict[str, str]] = []
    plan = list(task.plan)
    if rng.random() < habits.shortcut:
        plan = _shortcut(task, rng)
    found: str | None = None
    for call in plan:
        slipped = _slip(call, rng, habits)
        if call.tool == _WRITE or call is plan[-1]:
            if rng.random() < habits.early_end:
                break
            if call.tool == _WRITE and task.plan[-1].tool == _WRITE:
                text = str(rng.randint(12, 480)) if found is None else found
                slipped = replace(slipped, arguments={**slipped.arguments, "text": text})
        turn = render_call(slipped)
        if rng.random() < habits.bad_json:
            turn = _break(turn, rng)
        observation = await desk.answer(turn)
        found = None if observation.is_error else observation.text
        messages += [{"role": "assistant", "content": turn}, {"role": "tool", "content": observation.text}]
    return [*messages, {"role": "assistant", "content": FAREWELL}]


def _shortcut(task: Task, rng: random.Random) -> list[Call]:
    """The plan without the step that takes an effort."""
    first, *rest = task.plan
    match task.kind:
        case "total":
            keys = task.office.sheets[first.arguments["path"]].keys
            arguments = {"path": first.arguments["path"], "row": rng.choice(keys), "column": first.arguments["column"]}
            return [Call("sheets_lookup", arguments), *rest]
        case "hop":
            return [first, rest[-1]]
        case "find":
            guess = f"{COUNTS}/count_{rng.choice(MONTHS)}.csv"
            return [_with(rest[0], path=guess), rest[1]]
        case "memo":
            return [_with(rest[0], path=STOCK, row=rng.choice(ITEMS), column="quantity"), rest[1]]
        case "update" | "append":
            text = first.arguments.get("value", first.arguments.get("values", [""])[-1])
            return [Call(_WRITE, {"path": f"outbox/{rng.choice(REPLIES)}", "text": text})]
        case _:
            return list(task.plan)


def _slip(call: Call, rng: random.Random, habits: Habits) -> Call:
    """The call, with a wrong argument now and then."""
    wrong: dict[str, Any] = {}
    if call.tool == _WRITE:
        if rng.random() < habits.wrong_file:
            wrong["path"] = f"outbox/{rng.choice(REPLIES)}"
    elif call.tool.startswith("sheets_"):
        if rng.random() < habits.wrong_sheet:
            wrong["path"] = rng.choice(_SHEETS)
        if "row" in call.arguments and rng.random() < habits.wrong_row:
            wrong["row"] = _other_row(call.arguments["row"], rng)
        if "column" in call.arguments and rng.random() < habits.wrong_column:
            wrong["column"] = rng.choice(COLUMNS)
        if "value" in call.arguments and rng.random() < habits.wrong_value:
            wrong["value"] = rng.choice([*STATUSES, str(rng.randint(102, 989))])
        if "values" in call.arguments and rng.random() < habits.wrong_value:
            wrong["values"] = [*call.arguments["values"][:-1], str(rng.randint(2, 60))]
    return _with(call, **wrong)


def _with(call: Call, **arguments: object) -> Call:
    return replace(call, arguments={**call.arguments, **arguments})


def _other_row(row: str, rng: random.Random) -> str:
    if "-" in row:
        return f"{row[:3]}-{rng.randint(10, 99)}"
    return rng.choice(ITEMS if row in ITEMS else PEOPLE)


def _break(turn: str, rng: random.Random) -> str:
    return turn.replace("}}", "}") if rng.random() < 0.5 else turn.replace('", "arguments"', '", "args"')
