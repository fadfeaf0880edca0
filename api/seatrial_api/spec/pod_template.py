"""A partial PodTemplateSpec: any field of Kubernetes', less what Seatrial sets by itself."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from seatrial_api.rules import Rule

RAY_CONTAINER = "ray"
"""Name of the container that runs Ray in every pod of a run."""

_PRESERVED = {"x-kubernetes-preserve-unknown-fields": True}
_TEXT = {"type": "string", "maxLength": 4096}
_OWNED_CONTAINER_FIELDS = ("image", "command", "args", "resources")


class _Open(BaseModel):
    """A Kubernetes object of which only some fields concern us; a null is none of their values."""

    model_config = ConfigDict(extra="allow", strict=True, alias_generator=to_camel)


class _Container(_Open):
    name: str = Field(min_length=1, max_length=63)
    image: str = ""
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    resources: dict[str, Any] = Field(default_factory=dict)


class _PodSpec(_Open):
    restart_policy: str = ""
    scheduler_name: str = ""
    containers: list[_Container] = Field(default_factory=list, max_length=16)


class _Metadata(_Open):
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)


class _PodTemplate(_Open):
    metadata: _Metadata = _Metadata()
    spec: _PodSpec = _PodSpec()


def _check_shape(template: dict[str, Any]) -> dict[str, Any]:
    _PodTemplate.model_validate(template)
    return template


_SCHEMA = {
    "type": "object",
    **_PRESERVED,
    "properties": {
        "metadata": {
            "type": "object",
            **_PRESERVED,
            "properties": {
                "labels": {"type": "object", "maxProperties": 64, "additionalProperties": {**_TEXT, "maxLength": 63}},
            },
        },
        "spec": {
            "type": "object",
            **_PRESERVED,
            "properties": {
                "restartPolicy": {**_TEXT, "maxLength": 16},
                "schedulerName": {**_TEXT, "maxLength": 63},
                "containers": {
                    "type": "array",
                    "maxItems": 16,
                    "items": {
                        "type": "object",
                        **_PRESERVED,
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1, "maxLength": 63},
                            "image": _TEXT,
                            "command": {"type": "array", "items": _TEXT},
                            "args": {"type": "array", "items": _TEXT},
                            "resources": {"type": "object", **_PRESERVED},
                        },
                    },
                },
            },
        },
    },
}

PodTemplate = Annotated[dict[str, Any], AfterValidator(_check_shape), WithJsonSchema(_SCHEMA)]
"""A partial PodTemplateSpec; only the fields that rules look at are checked, the rest is for Kubernetes to judge."""


_HAS_CONTAINERS = "has(self.podTemplate.spec) && has(self.podTemplate.spec.containers)"
_HAS_LABELS = "has(self.podTemplate.metadata) && has(self.podTemplate.metadata.labels)"
_OWNED_FIELD_IS_SET = " || ".join(f"has(container.{field})" for field in _OWNED_CONTAINER_FIELDS)

POD_TEMPLATE_RULES = (
    Rule(
        f"!({_HAS_CONTAINERS}) || !self.podTemplate.spec.containers.exists(container, "
        f"container.name == '{RAY_CONTAINER}' && ({_OWNED_FIELD_IS_SET}))",
        f"podTemplate must not set {', '.join(_OWNED_CONTAINER_FIELDS)} of the container {RAY_CONTAINER}, which "
        "Seatrial sets; use the role's image and resources",
        ".podTemplate",
    ),
    Rule(
        "!has(self.podTemplate.spec) || !has(self.podTemplate.spec.restartPolicy)",
        "podTemplate must not set restartPolicy {self.podTemplate.spec.restartPolicy}: a restarted pod would rejoin "
        "with lost state; remove it",
        ".podTemplate",
    ),
    Rule(
        f"!({_HAS_LABELS}) || self.podTemplate.metadata.labels.all(key, "
        "!key.startsWith('ray.io/') && !key.startsWith('seatrial.dev/'))",
        "podTemplate must not set labels under ray.io/ or seatrial.dev/, by which pods are found; rename them",
        ".podTemplate",
    ),
)
