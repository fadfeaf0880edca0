"""Reads the fields of a client's request; what is wrong with one is said with its name."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial_rollout.tito.proxy.errors import InvalidRequestError
from seatrial_rollout.tito.template import Message, ToolSchema

type Body = Mapping[str, Any]


def integer(body: Body, name: str, *, minimum: int = 1) -> int | None:
    """A whole number; none if it is not given.

    Raises:
        InvalidRequestError: It is no number, or too small.
    """
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise InvalidRequestError(f"{name} has to be an integer of at least {minimum}, not {value!r}", param=name)
    return value


def number(body: Body, name: str, *, maximum: float) -> float | None:
    """A number from 0 to `maximum`; none if it is not given.

    Raises:
        InvalidRequestError: It is no number, or out of bounds.
    """
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise InvalidRequestError(f"{name} has to be a number from 0 to {maximum:g}, not {value!r}", param=name)
    return float(value)


def nucleus(body: Body) -> float | None:
    """`top_p`, which has to leave something to sample.

    Raises:
        InvalidRequestError: It does not.
    """
    if (top_p := number(body, "top_p", maximum=1)) == 0:
        raise InvalidRequestError("top_p has to be more than 0", param="top_p")
    return top_p


def flag(body: Body, name: str, *, default: bool) -> bool:
    """Yes or no.

    Raises:
        InvalidRequestError: It is neither.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} has to be true or false, not {value!r}", param=name)
    return value


def texts(body: Body, name: str) -> tuple[str, ...]:
    """One text or several; none of them empty.

    Raises:
        InvalidRequestError: It is something else.
    """
    value = body.get(name) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise InvalidRequestError(f"{name} has to be a list of texts, none of them empty", param=name)
    return tuple(value)


def objects(body: Body, name: str, *, is_needed: bool = False) -> list[dict[str, Any]]:
    """A list of JSON objects.

    Raises:
        InvalidRequestError: It is something else, or empty and needed.
    """
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequestError(f"{name} has to be a list of objects", param=name)
    if is_needed and not value:
        raise InvalidRequestError(f"{name} must not be empty", param=name)
    return value


def member(body: Body, name: str, key: str) -> Any:
    """A field of a field; none if either is not given.

    Raises:
        InvalidRequestError: The outer one is no object.
    """
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{name} has to be an object, not {value!r}", param=name)
    return value.get(key)


def text(value: Any, param: str) -> str:
    """The text of content that is a text, nothing, or a list of parts with a text each.

    Raises:
        InvalidRequestError: It holds a part that is no text: the policy can see no images.
    """
    if value is None or isinstance(value, str):
        return value or ""
    parts = value if isinstance(value, list) else [value]
    found = []
    for part in parts:
        said = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        said = part.get("refusal") if said is None and isinstance(part, dict) else said
        if not isinstance(said, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequestError(f"{param} holds {kind!r}; only text can be read", param=param)
        found.append(said)
    return "\n".join(found)


def tool_schema(function: Body, parameters: str) -> ToolSchema:
    """A tool as templates read it.

    Args:
        function: Name, description and schema.
        parameters: The API's name for the schema.

    Raises:
        InvalidRequestError: It has no name.
    """
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError("a tool needs a name", param="tools")
    schema = function.get(parameters) or {"type": "object", "properties": {}}
    described = {"name": name, "description": function.get("description") or "", "parameters": schema}
    return {"type": "function", "function": described}


def assistant(content: str, calls: Sequence[tuple[str, str, Any]], reasoning: str = "") -> Message:
    """An assistant's message.

    Args:
        content: What it says.
        calls: Id, name and arguments of each tool call.
        reasoning: What it thought.
    """
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}
            for call_id, name, arguments in calls
        ]
    return message


def _arguments(value: Any) -> Any:
    """Arguments as an object where they are one; templates can show any text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "{}")
    except ValueError:
        return value
