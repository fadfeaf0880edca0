"""Tool parameters as the model sees them: envelopes opened, and wrong arguments explained. Pure functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_ENVELOPES = frozenset({"input", "request"})

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class ToolParameters:
    """A tool's parameters, and how to hand them to its server."""

    schema: dict[str, Any]
    """JSON schema that the model is shown."""
    envelope: str = ""
    """Name of the one object parameter that was opened; empty if there was none."""

    def wrap(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the server wants them."""
        return {self.envelope: arguments} if self.envelope else arguments

    def problem(self, arguments: dict[str, Any]) -> str:
        """What is wrong with `arguments`, in a sentence that says what would be right; empty if nothing is."""
        properties: dict[str, Any] = self.schema.get("properties", {})
        problems = [*self._missing(arguments), *self._unknown(arguments, properties)]
        problems += [
            f'"{name}" has to be {_type_names(schema)}, not {_kind(arguments[name])}'
            for name, schema in properties.items()
            if name in arguments and not _fits(arguments[name], schema)
        ]
        return f"{'; '.join(problems)}. Parameters: {self._signature(properties)}" if problems else ""

    def _missing(self, arguments: dict[str, Any]) -> Iterator[str]:
        for name in self.schema.get("required", []):
            if name not in arguments:
                yield f'"{name}" is missing'

    def _unknown(self, arguments: dict[str, Any], properties: Mapping[str, Any]) -> Iterator[str]:
        # Servers drop what they don't know without a word, and the model would believe that it was heard.
        if self.schema.get("additionalProperties"):
            return
        for name in arguments:
            if name not in properties:
                yield f'there is no parameter "{name}"'

    def _signature(self, properties: Mapping[str, Any]) -> str:
        required = self.schema.get("required", [])
        each = [
            f"{name} ({_type_names(schema)}{'' if name in required else ', optional'})"
            for name, schema in properties.items()
        ]
        return ", ".join(each) or "none"


def open_envelope(schema: dict[str, Any]) -> ToolParameters:
    """Show the fields of a single `input` or `request` object as the tool's own parameters.

    Servers generated from request classes nest every argument one level deep; opening the envelope saves the model
    the nesting and, over a few dozen tools, some 20,000 tokens of schema.
    """
    properties: dict[str, Any] = schema.get("properties", {})
    if len(properties) != 1 or not _ENVELOPES & set(properties):
        return ToolParameters(schema)
    (name,) = properties
    definitions: dict[str, Any] = schema.get("$defs", {})
    inner = properties[name]
    if "$ref" in inner:
        inner = definitions.get(inner["$ref"].removeprefix("#/$defs/"), {})
    if inner.get("type") != "object" or not inner.get("properties"):
        return ToolParameters(schema)
    shown = {key: value for key, value in inner.items() if key not in {"title", "description"}}
    if any("#/$defs/" in str(value) for value in inner.values()):
        shown["$defs"] = definitions
    return ToolParameters(shown, name)


def _options(schema: dict[str, Any]) -> list[str]:
    """Names of the types that a parameter may have; empty if the schema says more than a type."""
    names: list[str] = []
    for option in schema.get("anyOf", [schema]):
        declared = option.get("type")
        if declared is None:
            return []
        names += [declared] if isinstance(declared, str) else declared
    return names if all(name in _TYPES for name in names) else []


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    options = _options(schema)
    if not options:
        return True
    if isinstance(value, bool):  # Python counts it as an integer, JSON does not
        return "boolean" in options
    return any(isinstance(value, _TYPES[name]) for name in options)


def _type_names(schema: dict[str, Any]) -> str:
    return " or ".join(_options(schema)) or "any"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _TYPES.items() if isinstance(value, types)), type(value).__name__)
