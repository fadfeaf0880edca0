"""Tool parameters: envelopes and wrong arguments."""

from typing import Any

import pytest

from seatrial_rollout.harness.tool_schema import ToolParameters, open_envelope

INNER: dict[str, Any] = {
    "title": "Request",
    "type": "object",
    "properties": {"path": {"type": "string"}, "cell": {"$ref": "#/$defs/Cell"}},
    "required": ["path"],
}
CELL = {"type": "object", "properties": {"row": {"type": "integer"}}}


def test_a_single_request_object_is_opened_and_wrapped_again() -> None:
    schema = {
        "type": "object",
        "properties": {"request": {"$ref": "#/$defs/Request"}},
        "required": ["request"],
        "$defs": {"Request": INNER, "Cell": CELL},
    }
    parameters = open_envelope(schema)
    assert parameters.schema["properties"] == INNER["properties"]
    assert parameters.schema["required"] == ["path"]
    assert parameters.schema["$defs"]["Cell"] == CELL
    assert parameters.wrap({"path": "a"}) == {"request": {"path": "a"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"query": INNER}},
        {"type": "object", "properties": {"request": {"type": "string"}}},
        {"type": "object", "properties": {"request": INNER, "path": {"type": "string"}}},
        {"type": "object"},
    ],
    ids=["another name", "not an object", "two parameters", "no parameters"],
)
def test_anything_else_stays_as_it_is(schema: dict[str, Any]) -> None:
    parameters = open_envelope(schema)
    assert parameters == ToolParameters(schema)
    assert parameters.wrap({"a": 1}) == {"a": 1}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "rows": {"type": "integer"},
        "tab": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "any": {},
        "size": {"type": "number"},
        "flag": {"type": "boolean"},
    },
    "required": ["path"],
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a"},
        {"path": "a", "rows": 3, "tab": None, "any": [1], "size": 2, "flag": True},
        {"path": "a", "tab": "x", "size": 2.5},
    ],
)
def test_right_arguments_have_no_problem(arguments: dict[str, Any]) -> None:
    assert ToolParameters(SCHEMA).problem(arguments) == ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, '"path" is missing'),
        ({"path": 1}, '"path" has to be string, not integer'),
        ({"path": "a", "rows": "3"}, '"rows" has to be integer, not string'),
        ({"path": "a", "rows": True}, '"rows" has to be integer, not boolean'),
        ({"path": "a", "tab": 1.5}, '"tab" has to be string or null, not number'),
        ({"path": "a", "flag": 1}, '"flag" has to be boolean, not integer'),
        ({"path": "a", "row": 1}, 'there is no parameter "row"'),
    ],
)
def test_wrong_arguments_are_named_with_what_would_be_right(arguments: dict[str, Any], problem: str) -> None:
    found = ToolParameters(SCHEMA).problem(arguments)
    assert problem in found
    assert "Parameters: path (string), rows (integer, optional)" in found


def test_every_problem_is_told_at_once() -> None:
    assert ToolParameters(SCHEMA).problem({"row": 1, "rows": "x"}).count(";") == 2


def test_open_schemas_take_what_they_do_not_name() -> None:
    assert ToolParameters(SCHEMA | {"additionalProperties": True}).problem({"path": "a", "row": 1}) == ""
