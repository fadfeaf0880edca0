"""The CRDs: structural, complete, and the same as what is committed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial_api.crd import KINDS, Kind, Schema, definition, structural_schema
from seatrial_api.rlrun import RLRun
from seatrial_api.rollout_pool import RolloutPool
from seatrial_api.rules import stored_form
from seatrial_api.walk import model_types
from tests.manifests import run_manifest

ROOT = Path(__file__).resolve().parents[3]
BY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every node of a schema, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def schema_of(kind: Kind) -> Schema:
    version: dict[str, Any] = definition(kind)["spec"]["versions"][0]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


@BY_KIND
def test_every_node_has_a_type_and_no_reference(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "oneOf", "allOf", "not", "prefixItems", "const", "title"} & node.keys(), path
        assert "anyOf" not in node or node["x-kubernetes-int-or-string"], path


@BY_KIND
def test_every_field_says_what_it_means(kind: Kind) -> None:
    described = {
        path: node.get("description", "")
        for path, node in nodes(structural_schema(kind.model))
        if not path.endswith("[]") and "podTemplate." not in path
    }
    assert [path for path, text in described.items() if not text] == []


@BY_KIND
def test_an_object_is_closed_or_says_that_it_is_open(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        if node.get("type") == "object" and path != ".metadata":
            is_open = "additionalProperties" in node or node.get("x-kubernetes-preserve-unknown-fields")
            assert "properties" in node or is_open, path


@BY_KIND
def test_a_default_is_complete_so_that_rules_can_be_evaluated_on_it(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        if isinstance(node.get("default"), dict):
            defaulted = {name for name, below in node.get("properties", {}).items() if "default" in below}
            assert defaulted <= node["default"].keys(), path


@BY_KIND
def test_a_rule_blames_a_field_that_exists(kind: Kind) -> None:
    for path, node in nodes(schema_of(kind)):
        for validation in node.get("x-kubernetes-validations", []):
            blamed = node
            for name in validation.get("fieldPath", "").split(".")[1:]:
                blamed = blamed["properties"][name]
            assert len(validation.get("message", "")) <= 2048, path
            assert "\n" not in validation.get("message", ""), path


def test_defaults_of_the_schema_are_those_of_the_models() -> None:
    stored = stored_form(RLRun.model_validate(run_manifest()))
    filled = with_defaults(structural_schema(RLRun), run_manifest())
    assert filled == stored


def with_defaults(schema: Schema, value: Any) -> Any:
    """Fill in defaults as the API server does."""
    if isinstance(value, list):
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    below = schema.get("properties", {})
    defaults = {name: item["default"] for name, item in below.items() if "default" in item}
    return {name: with_defaults(below.get(name, {}), item) for name, item in {**defaults, **value}.items()}


def test_a_guard_can_be_switched_off_with_null() -> None:
    guards = structural_schema(RLRun)["properties"]["spec"]["properties"]["guards"]["properties"]
    assert guards["maxErrorRate"]["nullable"] is True
    assert "nullable" not in guards["minEntropy"]


def test_concurrency_takes_a_word_or_a_number() -> None:
    node = structural_schema(RLRun)["properties"]["spec"]["properties"]["async"]["properties"]["concurrency"]
    assert node["x-kubernetes-int-or-string"] is True
    assert (node["pattern"], node["minimum"], node["default"]) == ("^Auto$", 1, "Auto")


def test_names_columns_and_subresources_are_what_kubectl_shows() -> None:
    by_name = {kind.name: definition(kind)["spec"] for kind in KINDS}
    assert {name: spec["names"]["shortNames"] for name, spec in by_name.items()} == {
        "RLRun": ["rl"],
        "WorldImage": ["wi"],
        "RolloutPool": ["rp"],
    }
    columns = [column["name"] for column in by_name["RLRun"]["versions"][0]["additionalPrinterColumns"]]
    assert columns[:2] == ["Phase", "Stage"]
    assert columns[-1] == "Age"
    assert all("status" in spec["versions"][0]["subresources"] for spec in by_name.values())
    scale = by_name["RolloutPool"]["versions"][0]["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.engines.replicas"


@BY_KIND
def test_columns_and_scale_read_fields_that_exist(kind: Kind) -> None:
    known = {path for path, _ in nodes(schema_of(kind))}
    paths = [column.path for column in kind.columns if "conditions" not in column.path]
    paths += list((kind.scale or {}).values())
    assert {path for path in paths if not path.startswith(".metadata")} <= known


def test_models_of_one_kind_have_names_of_their_own() -> None:
    for kind in KINDS:
        names = [model.__name__ for model in model_types(kind.model)]
        assert len(names) == len(set(names))


def test_what_is_committed_is_what_the_models_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_pool_needs_no_more_than_a_run() -> None:
    pool = RolloutPool.model_validate(
        {"apiVersion": "seatrial.dev/v1alpha1", "kind": "RolloutPool", "metadata": {"name": "p"}, "spec": {"run": "r"}}
    )
    assert pool.spec.engines.replicas == 1
