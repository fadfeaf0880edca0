"""Manifests for tests: small valid ones, changes to them, and objects generated from the schemas."""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from seatrial_api.crd import Schema

_TEXTS = (
    "x",
    "y",
    "archipelago",
    "my.module:Agent",
    "--port=1",
    "1:1",
    "4:2",
    "s3://bucket",
    "http://x",
    "local",
    "harbor:docker",
    "10.0.0.0/8",
    "2026-01-01T00:00:00Z",
    "Ready",
)


def run_manifest(**changes: Any) -> dict[str, Any]:
    """A valid RLRun with every kind of stage; `changes` map dotted paths (`spec__algorithm__batchSize`) to values."""
    manifest: dict[str, Any] = {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {"name": "run"},
        "spec": {
            "model": {"source": {"path": "model"}, "contextLength": {"train": 4096}},
            "data": {
                "train": {"source": {"path": "train"}},
                "validation": {"source": {"path": "validation"}},
                "heldOut": {"source": {"path": "held-out"}},
            },
            "topology": {"nodes": 1, "gpusPerNode": 8},
            "stages": [
                {"name": "preflight", "preflight": {}},
                {"name": "before", "evaluate": {"checkpoint": "Initial"}},
                {"name": "overfit", "overfit": {}},
                {"name": "train", "train": {"steps": 20}},
                {"name": "after", "evaluate": {"checkpoint": "Best", "minGain": 0.1}},
            ],
        },
    }
    for path, value in changes.items():
        put(manifest, path, value)
    return manifest


def put(manifest: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at `path`, keys joined by `__`; a number is an index, and `None` takes the value out."""
    *way, last = [int(key) if key.isdigit() else key for key in path.split("__")]
    parent: Any = manifest
    for key in way:
        parent = parent[key] if isinstance(key, int) else parent.setdefault(key, {})
    if value is None:
        del parent[last]
    else:
        parent[last] = copy.deepcopy(value)


def values_of(schema: Schema) -> st.SearchStrategy[Any]:
    """Small values that satisfy a structural schema, its defaults among them; rules may be broken."""
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.just("Auto"), st.integers(1, 40))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return _BY_TYPE[schema["type"]](schema)


def _lists_of(schema: Schema) -> st.SearchStrategy[list[Any]]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", 8)
    return st.lists(values_of(schema["items"]), min_size=least, max_size=min(most, least + 2))


def _integers_of(schema: Schema) -> st.SearchStrategy[int]:
    least = schema.get("minimum", -3)
    return st.integers(least, min(schema.get("maximum", least + 8), least + 8))


def _objects_of(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if not properties:
        return st.dictionaries(st.sampled_from(["a", "ray.io/x", "b"]), st.just("1"), max_size=2)
    required = schema.get("required", [])
    return st.fixed_dictionaries(
        {name: values_of(properties[name]) for name in required},
        optional={name: values_of(below) for name, below in properties.items() if name not in required},
    )


def _numbers_of(schema: Schema) -> st.SearchStrategy[float]:
    least, most = schema.get("minimum", -2.0), schema.get("maximum", schema.get("minimum", -2.0) + 4.0)
    return st.floats(
        least,
        most,
        exclude_min=schema.get("exclusiveMinimum", False),
        exclude_max=schema.get("exclusiveMaximum", False),
        allow_subnormal=False,
        width=16,
    )


def _texts_of(schema: Schema) -> st.SearchStrategy[str]:
    pattern = re.compile(schema.get("pattern", ""))
    return st.sampled_from([text for text in _TEXTS if pattern.search(text)])


_BY_TYPE: dict[str, Callable[[Schema], st.SearchStrategy[Any]]] = {
    "object": _objects_of,
    "array": _lists_of,
    "boolean": lambda _: st.booleans(),
    "integer": _integers_of,
    "number": _numbers_of,
    "string": _texts_of,
}
