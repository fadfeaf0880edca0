"""Pydantic's findings in our words: what is wanted, what is near, and what the field is for."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from seatrial.yaml_source import Location
from seatrial_api.base import ApiModel
from seatrial_api.crd import Schema, structural_schema

_WANTED = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_attributes_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be text; put it in quotes",
    "tuple_type": "must be a list",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
}
"""By pydantic's type of error; values in braces come from its context."""


def describe(model: type[ApiModel], location: Location, error: Mapping[str, Any]) -> str:
    """One error of pydantic's, at `location` in an object of the kind `model`, as the end of a sentence."""
    kind, context, schema = error["type"], error.get("ctx", {}), schema_at(model, location)
    purpose = str(schema.get("description", "")).rstrip(".")
    if kind in _WANTED:
        return _WANTED[kind].format(**context)
    match kind:
        case "missing":
            return f"is required and missing: {purpose}"
        case "extra_forbidden":
            known = schema_at(model, location[:-1]).get("properties", {})
            return f"is unknown{did_you_mean(location[-1], known) or f'; known here are {", ".join(known)}'}"
        case "literal_error" | "enum":
            choices = [str(choice) for choice in schema.get("enum", [context["expected"].strip("'")])]
            return f"must be {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}" + did_you_mean(
                error["input"], choices
            )
        case "string_pattern_mismatch":
            return f"must match {context['pattern']} ({purpose})"
        case _:
            text = str(error["msg"])
            return text[:1].lower() + text[1:]


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing when no known name is near."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def nearest(name: Any, known: Iterable[str]) -> str | None:
    """The known name that a person most likely meant; spelling of words, case and underscores do not count."""
    if not isinstance(name, str):
        return None
    by_plain_name = {_plain(choice): choice for choice in known}
    close = get_close_matches(_plain(name), list(by_plain_name), n=1, cutoff=0.6)
    return by_plain_name[close[0]] if close else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


@cache
def _root_schema(model: type[ApiModel]) -> Schema:
    return structural_schema(model)


def schema_at(model: type[ApiModel], location: Location) -> Schema:
    """Schema of what lies at `location` in an object of the kind `model`; empty where there is none."""
    schema = _root_schema(model)
    for key in location:
        below = schema.get("items") if isinstance(key, int) else schema.get("properties", {}).get(key)
        schema = below if below is not None else schema.get("additionalProperties", {})
    return schema
