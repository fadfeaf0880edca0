"""What clients demand of the form of an answer: that a tool is called, or that what is said is JSON of a schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seatrial_rollout.tito.proxy.errors import InvalidRequestError
from seatrial_rollout.tito.template import ToolSchema

type Choice = tuple[Literal["auto", "none", "required", "named"], str]
"""Whether tools may, must not or must be called; with `named`, which one."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The form that an answer has to have; engines enforce it while they sample."""

    param: str
    """The client's field that demands it."""
    calls: tuple[str, ...] = ()
    """Tools of which at least one has to be called; empty if none has to."""
    is_single: bool = False
    """Whether exactly one call is wanted."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of an answer that calls nothing; none if that may be any text."""


def demand_of(
    choice: Choice, tools: Sequence[ToolSchema], schema: Mapping[str, Any] | None = None, schema_param: str = ""
) -> Demand | None:
    """The demand of a request; none if it leaves the form to the policy.

    Args:
        choice: What the client says of calls.
        tools: Tools of the request.
        schema: JSON schema of what is said, if the client gives one.
        schema_param: The field that has it.

    Raises:
        InvalidRequestError: A call is demanded of a tool that the request does not have.
    """
    kind, name = choice
    names = tuple(tool["function"]["name"] for tool in tools)
    match kind:
        case "required" if not names:
            raise InvalidRequestError("tool_choice demands a call, and there are no tools", param="tool_choice")
        case "required":
            return Demand("tool_choice", names)
        case "named" if name not in names:
            raise InvalidRequestError(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
        case "named":
            return Demand("tool_choice", (name,), is_single=True)
        case _:
            return None if schema is None else Demand(schema_param, schema=schema)


def openai_choice(value: Any) -> Choice:
    """What OpenAI's `tool_choice` says, of chat completions and of responses.

    Raises:
        InvalidRequestError: It asks for what no engine here can enforce.
    """
    match value:
        case None | "auto":
            return "auto", ""
        case "none":
            return "none", ""
        case "required":
            return "required", ""
        case {"type": "function", "function": {"name": str(name)}}:
            return "named", name
        case {"type": "function" | "custom", "name": str(name)}:
            return "named", name
        case _:
            what = f"tool_choice: {value!r} is neither auto, none, required nor the name of a function"
            raise InvalidRequestError(what, param="tool_choice")


def anthropic_choice(value: Any) -> Choice:
    """What Anthropic's `tool_choice` says.

    Raises:
        InvalidRequestError: It is none that is known.
    """
    match value:
        case None | {"type": "auto"}:
            return "auto", ""
        case {"type": "none"}:
            return "none", ""
        case {"type": "any"}:
            return "required", ""
        case {"type": "tool", "name": str(name)}:
            return "named", name
        case _:
            what = f"tool_choice: {value!r} is neither of type auto, none, any nor of type tool with a name"
            raise InvalidRequestError(what, param="tool_choice")


def answer_schema(form: Any, param: str) -> Mapping[str, Any] | None:
    """The JSON schema of what may be said, in whichever API's field it comes; none if any text will do.

    Args:
        form: OpenAI's `response_format` or `text.format`, Anthropic's `output_config.format`.
        param: Name of that field.

    Raises:
        InvalidRequestError: It is none that is known.
    """
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
        case {"type": "json_schema", "schema": dict(schema)}:
            return schema
        case _:
            what = f"{param} has to be text, json_object or a json_schema with its schema, not {form!r}"
            raise InvalidRequestError(what, param=param)
