"""CustomResourceDefinitions from the models: one source for the cluster, `seatrial validate` and the reference pages.

The API server takes *structural* schemas only: no references, no unions, a type at every node. This module turns
pydantic's JSON schema into one and hangs each model's rules on its object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from seatrial_api.base import ApiModel
from seatrial_api.kubernetes_object import API_GROUP, API_VERSION
from seatrial_api.rlrun import RLRun
from seatrial_api.rollout_pool import RolloutPool
from seatrial_api.rules import Rule, RuledModel
from seatrial_api.walk import model_types
from seatrial_api.world_image import WorldImage

type Schema = dict[str, Any]

_KEPT = (
    "description",
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "pattern",
    "type",
)
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    is_wide: bool = False

    def manifest(self) -> dict[str, Any]:
        """As the CRD has it; a wide column is shown with `-o wide` only."""
        wide = {"priority": 1} if self.is_wide else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **wide}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of ours with what a CRD says besides its schema."""

    model: type[ApiModel]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scale: dict[str, str] | None = field(default=None)

    @property
    def name(self) -> str:
        """Name of the kind."""
        return self.model.__name__


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_READY = Column("Ready", ".status.conditions[?(@.type=='Ready')].status")
_REASON = Column("Reason", ".status.conditions[?(@.type=='Ready')].reason")

KINDS = (
    Kind(
        RLRun,
        "rlruns",
        "rl",
        (
            Column("Phase", ".status.phase"),
            Column("Stage", ".status.stage"),
            Column("Step", ".status.progress.step", "integer"),
            Column("Of", ".status.progress.of", "integer"),
            Column("Reward", ".status.metrics.reward", "number"),
            Column("Validation", ".status.metrics.validationPassRate", "number", is_wide=True),
            Column("Error", ".status.metrics.errorRate", "number", is_wide=True),
            Column("Cost", ".status.metrics.costDollars", "number", is_wide=True),
            _AGE,
        ),
    ),
    Kind(
        WorldImage,
        "worldimages",
        "wi",
        (_READY, _REASON, Column("MCP", ".spec.mcp.kind"), Column("Digest", ".status.digest", is_wide=True), _AGE),
    ),
    Kind(
        RolloutPool,
        "rolloutpools",
        "rp",
        (
            _READY,
            Column("Engines", ".status.readyReplicas", "integer"),
            Column("Wanted", ".spec.engines.replicas", "integer"),
            Column("Live", ".status.ceilings.live", "integer"),
            Column("Run", ".spec.run", is_wide=True),
            _AGE,
        ),
        {
            "specReplicasPath": ".spec.engines.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
)


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of `kind`."""
    singular = kind.name.lower()
    subresources = {"status": {}, **({"scale": kind.scale} if kind.scale else {})}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": singular,
                "shortNames": [kind.short_name],
                "categories": ["seatrial"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": API_VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [column.manifest() for column in kind.columns],
                    "subresources": subresources,
                    "schema": {"openAPIV3Schema": root_schema(kind.model)},
                }
            ],
        },
    }


def root_schema(model: type[ApiModel]) -> Schema:
    """Structural schema of a whole object; metadata is Kubernetes' own."""
    schema = structural_schema(model)
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": "API group and version."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
        **{name: schema["properties"][name] for name in ("spec", "status")},
    }
    schema["required"] = ["spec"]
    return schema


def structural_schema(model: type[ApiModel]) -> Schema:
    """Structural schema of `model`, with its rules and those of all models in it."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(raw.get("$defs", {}), {item.__name__: item for item in model_types(model)}).convert(
        {**raw, "title": model.__name__}
    )


class _Converter:
    """Walks pydantic's JSON schema; every reference is replaced by what it stands for."""

    def __init__(self, definitions: Mapping[str, Schema], models: Mapping[str, type[ApiModel]]) -> None:
        self._definitions = definitions
        self._models = models

    def convert(self, raw: Schema) -> Schema:
        """The structural form of `raw`."""
        if "$ref" in raw:
            target = self._definitions[raw["$ref"].rpartition("/")[2]]
            below = {key: value for key, value in raw.items() if key != "$ref"}
            return self.convert({**target, **below})
        if "anyOf" in raw:
            return self._union(raw)
        schema = {key: raw[key] for key in _KEPT if key in raw}
        if "const" in raw:
            schema["enum"] = [raw["const"]]
        self._numbers(raw, schema)
        self._array(raw, schema)
        self._object(raw, schema)
        if raw.get("default") is not None:
            schema["default"] = _without_nulls(raw["default"])
        if raw.get(_PRESERVE):
            schema[_PRESERVE] = True
        return schema

    def _union(self, raw: Schema) -> Schema:
        """An optional value, or `Auto | N`; there are no other unions in the API."""
        choices = [choice for choice in raw["anyOf"] if choice.get("type") != "null"]
        below = {key: value for key, value in raw.items() if key != "anyOf"}
        if len(choices) == 1:
            is_null_a_choice = len(raw["anyOf"]) > 1 and raw.get("default") is not None
            return {**self.convert({**choices[0], **below}), **({"nullable": True} if is_null_a_choice else {})}
        word, number = choices
        return {
            "description": raw["description"],
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": f"^{word['const']}$",
            "minimum": number["minimum"],
            "default": raw["default"],
        }

    def _numbers(self, raw: Schema, schema: Schema) -> None:
        if raw.get("type") == "integer":
            schema["format"] = "int64"
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in raw:
                schema |= {bound: raw[exclusive], exclusive: True}

    def _array(self, raw: Schema, schema: Schema) -> None:
        if raw.get("type") != "array":
            return
        items = raw["prefixItems"][0] if "prefixItems" in raw else raw["items"]
        schema["items"] = self.convert(items)

    def _object(self, raw: Schema, schema: Schema) -> None:
        if raw.get("type") != "object":
            return
        model = self._models.get(raw.get("title", ""))
        if "properties" in raw:
            made = _made_defaults(model) if model else {}
            schema["properties"] = {
                name: self.convert({**made.get(name, {}), **below}) for name, below in raw["properties"].items()
            }
            if raw.get("required"):
                schema["required"] = raw["required"]
        elif isinstance(raw.get("additionalProperties"), dict):
            schema["additionalProperties"] = self.convert(raw["additionalProperties"])
        else:
            schema[_PRESERVE] = True
        if model and issubclass(model, RuledModel) and model.rules:
            schema["x-kubernetes-validations"] = [_validation(rule) for rule in model.rules]


def _made_defaults(model: type[ApiModel]) -> dict[str, Schema]:
    """Defaults that a factory makes, which pydantic leaves out of its schema: empty lists and mappings, mostly."""
    made = {
        info.alias or name: info.get_default(call_default_factory=True, validated_data={})
        for name, info in model.model_fields.items()
        if info.default_factory is not None
    }
    return {name: {"default": to_jsonable_python(value, by_alias=True)} for name, value in made.items()}


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(item) for key, item in value.items() if item is not None}


def _validation(rule: Rule) -> Schema:
    message = rule.message_expression
    is_ours = not rule.field.startswith(".metadata")  # a schema says nothing of metadata and cannot be blamed for it
    return {
        "rule": rule.cel,
        **({"message": rule.message} if message is None else {"messageExpression": message}),
        **({"fieldPath": rule.field} if rule.field and is_ours else {}),
    }
