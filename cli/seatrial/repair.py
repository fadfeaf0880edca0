"""Put valid values where a manifest is faulty, so that one reading finds all that is wrong and not its first layer."""

import re
from collections.abc import Sequence
from typing import Any

from seatrial.wording import nearest, schema_at
from seatrial.yaml_source import Location
from seatrial_api.base import ApiModel
from seatrial_api.crd import Schema
from seatrial_api.rules import Violation

_TEXTS = ("x", "1:1", "s3://bucket", "http://x", "local", "X", "10.0.0.0/8")
"""One of these matches every pattern in the API; a test says so."""


def repair(model: type[ApiModel], data: Any, faulty: Sequence[Location]) -> None:
    """Rename misspelt fields, take out unknown ones, and put placeholders for wrong or missing values."""
    for location in sorted(faulty, key=len, reverse=True):
        parent = get(data, location[:-1])
        key = location[-1] if location else None
        schema = schema_at(model, location)
        if isinstance(parent, dict) and not schema:
            value = parent.pop(key)
            meant = nearest(key, schema_at(model, location[:-1]).get("properties", {}))
            if meant is not None and meant not in parent:
                parent[meant] = value
        elif isinstance(parent, dict | list) and key is not None:
            parent[key] = placeholder(schema)  # type: ignore[index]  # a location fits its parent


def placeholder(schema: Schema) -> Any:
    """The least value that `schema` allows."""
    if "default" in schema or "enum" in schema:
        return schema.get("default", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object":
            return {name: placeholder(schema["properties"][name]) for name in schema.get("required", [])}
        case "array":
            return [placeholder(schema["items"])] * schema.get("minItems", 0)
        case "boolean":
            return False
        case "integer" | "number":
            return schema.get("minimum", 0) + (1 if schema.get("exclusiveMinimum") else 0)
        case _:
            pattern = schema.get("pattern", "")
            return next((text for text in _TEXTS if re.search(pattern, text)), "")


def depends_on(violation: Violation, repaired: Sequence[Location]) -> bool:
    """Whether a rule may be broken only because of a repair: of its object, or of a field that it names."""
    owner = parse(violation.path.removesuffix(violation.rule.field))
    return any(owner[: len(location)] == location or f".{location[-1]}" in violation.rule.cel for location in repaired)


def exists(data: Any, key: str | int) -> bool:
    """Whether the mapping or list `data` has something at `key`."""
    return key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))


def get(data: Any, location: Location) -> Any:
    """The value at `location`; none if there is none."""
    for key in location:
        if not exists(data, key):
            return None
        data = data[key]
    return data


def parse(path: str) -> Location:
    """`.spec.stages[0].name` as keys and indices."""
    keys = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(key) if key.isdigit() else key for key in keys if key)


def join(location: Location) -> str:
    """Keys and indices as `spec.stages[0].name`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location).removeprefix(".")
