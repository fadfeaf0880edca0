"""Manifests that must not be accepted: malformed after the schemas, and contradictory to what the operator can do."""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from seatrial_api.crd import KINDS, Kind, Schema, root_schema
from tests.broken_rules import POOL, WORLD
from tests.manifests import run_manifest

_WRONG_TYPES: dict[str, Any] = {
    "string": 5,
    "integer": "five",
    "number": "five",
    "boolean": "yes",
    "object": [1],
    "array": {"a": 1},
}
_PRESERVED = "x-kubernetes-preserve-unknown-fields"
_UNKNOWN = "noSuchField"
_MAX_ITEMS = 64

_REFUSED = Path(__file__).parent / "data" / "bad_manifests" / "refused.yaml"
_ROLES = ("head", "rollout", "train", "agents")
_STARTED: dict[str, Any] = {
    "metadata__namespace": "team",
    "spec__sandbox": {"provider": "local"},
    "spec__storage": {"pvc": {"claim": "runs"}},
    "spec__async__weightSync": {"method": "gloo"},
    "spec__topology": {"nodes": 2, "gpusPerNode": 8},
}
"""Makes `run_manifest` a run that the operator starts."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A manifest with one fault that its schema names."""

    name: str
    manifest: dict[str, Any]
    field: str
    """The faulty field, as the API server writes it: `spec.stages[0].train.steps`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A valid RLRun that the operator must not run."""

    name: str
    manifest: dict[str, Any]
    field: str
    """The field that the condition names."""
    words: str
    """What the condition says of it."""
    reason: str
    """Reason of the condition that is not met."""


def base_of(kind: Kind) -> dict[str, Any]:
    """A valid manifest of a kind."""
    return {"RLRun": run_manifest(), "WorldImage": copy.deepcopy(WORLD), "RolloutPool": copy.deepcopy(POOL)}[kind.name]


def malformed() -> Iterator[Malformed]:
    """One manifest for each constraint of each field of each kind's spec."""
    for kind in KINDS:
        schema = root_schema(kind.model)["properties"]["spec"]
        for path, fault, value in _faults(schema, "spec"):
            manifest = base_of(kind)
            _put(manifest, path.split("."), value)
            yield Malformed(f"{kind.name} {_written(path)} {fault}", manifest, _written(path))


def _faults(schema: Schema, path: str) -> Iterator[tuple[str, str, Any]]:
    """Path, what is wrong, and the wrong value."""
    for name, below in schema.get("properties", {}).items():
        place = f"{path}.{name}"
        yield from ((place, fault, value) for fault, value in _values(below))
        yield from _faults(below, place)
        items = below.get("items", {})
        if items.get("properties"):
            yield from _faults(items, f"{place}.0")
    if schema.get("properties") and not schema.get(_PRESERVED):
        yield f"{path}.{_UNKNOWN}", "is unknown", 1


def _values(schema: Schema) -> Iterator[tuple[str, Any]]:
    if schema.get("x-kubernetes-int-or-string"):
        yield "is neither Auto nor a number", "auto"
        yield "is too small", 0
        return
    yield "is of the wrong type", _WRONG_TYPES[schema["type"]]
    if "enum" in schema:
        yield "is no choice", "NoSuchChoice"
    if "minimum" in schema:
        yield "is too small", schema["minimum"] - (0 if schema.get("exclusiveMinimum") else 1)
    if "maximum" in schema:
        yield "is too large", schema["maximum"] + (0 if schema.get("exclusiveMaximum") else 1)
    if schema["type"] == "string" and "pattern" in schema and not re.search(schema["pattern"], "?!"):
        yield "does not match", "?!"
    if schema["type"] == "string" and "maxLength" in schema:
        yield "is too long", "x" * (schema["maxLength"] + 1)
    if schema.get("minItems"):
        yield "is empty", []
    if schema.get("maxItems", _MAX_ITEMS + 1) <= _MAX_ITEMS and schema["items"]["type"] == "string":
        yield "has too many items", ["x"] * (schema["maxItems"] + 1)


def _written(path: str) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", path)


def refused() -> Iterator[Refused]:
    """What the rules let through and the operator answers with a condition; see the file for each case."""
    for index, case in enumerate(yaml.safe_load(_REFUSED.read_text())):
        manifest = run_manifest(**_STARTED, metadata__name=f"bad-{index}")
        for path, value in case.get("set", {}).items():
            _put(manifest, path.split("."), value)
        role = next((role for role in _ROLES if role in case), None)
        if role is not None:
            manifest["spec"]["topology"][role] = {"podTemplate": case[role]}
        field = f"spec.topology.{role}.podTemplate.{case['field']}" if role else case["field"]
        yield Refused(case["name"], manifest, field, case.get("words", ""), case.get("reason", "InvalidSpec"))


def _put(parent: Any, path: Sequence[str], value: Any) -> None:
    """Set the value at `path` and make what is missing on the way: lists where a key is a number."""
    key, *rest = path
    if isinstance(parent, list):
        index = int(key)
        parent.extend({} for _ in range(index + 1 - len(parent)))
        if rest:
            _put(parent[index], rest, value)
        else:
            parent[index] = copy.deepcopy(value)
    elif rest:
        _put(parent.setdefault(key, [] if rest[0].isdigit() else {}), rest, value)
    else:
        parent[key] = copy.deepcopy(value)
