"""What is wrong with a task's tools, read from what a prober wrote down."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_rollout.inspection.faults import Fault, FaultKind

PROBER = "seatrial_rollout.inspection.prober:ToolProber"
LISTED = "tools/list"
"""Stands in place of arguments where the prober wrote down how a tool is offered."""
NO_ANSWER = "(no answer in time)"
_NOTHING = frozenset({"", "None", "null", "(the tool returned nothing)"})
_OF_TYPE: Mapping[str, Any] = {"string": [], "integer": "many", "number": "much", "boolean": "maybe", "array": 7}
"""A value that no field of the type takes; a field of another type, or of several, gets none."""


def wrong_arguments(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Arguments that a tool's schema does not allow: nothing where something is required, and values of wrong types.

    A tool that takes anything is called with nothing wrong, since there is nothing.
    """
    if schema.get("required"):
        yield {}
    wrong = {
        name: _OF_TYPE[field["type"]]
        for name, field in schema.get("properties", {}).items()
        if field.get("type") in _OF_TYPE
    }
    if wrong:
        yield wrong


def find_tool_faults(task: str, probed: Trajectory) -> Iterator[Fault]:
    """Faults of a task's tools, one sentence each.

    Args:
        task: Name of the task.
        probed: A trial of the prober.
    """
    if probed.outcome.is_infrastructure:
        yield Fault(FaultKind.UNTRIED, task, f"{probed.outcome}: {probed.detail}")
    for turn in probed.turns:
        for call in turn.tool_calls:
            name = f"{call.server}_{call.tool}"
            problems = _offer_problems(call) if call.arguments == LISTED else _answer_problems(call)
            yield from (Fault(FaultKind.TOOL, task, f"{name} {problem}") for problem in problems)


def _offer_problems(call: ToolCall) -> Iterator[str]:
    offer = json.loads(call.result)
    if not (offer["description"] or "").strip():
        yield "has no description"
    for name, field in offer["schema"].get("properties", {}).items():
        if not {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"} & field.keys():
            yield f"does not say of which type {name} is"


def _answer_problems(call: ToolCall) -> Iterator[str]:
    given = f"called with {call.arguments}"
    if call.is_error and "Traceback (most recent call last)" in call.result:
        yield f"{given} answers with a traceback"
    elif call.is_error and call.result.strip() in _NOTHING:
        yield f"{given} fails without a word"
    elif call.result == NO_ANSWER:
        yield f"{given} does not answer within {call.duration_seconds:.0f} s"
    elif not call.is_error:
        yield f"{given} says that it worked: {call.result[:80]!r}"
