"""What every object of ours has in common with all of Kubernetes' objects."""

from typing import Annotated, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, Name
from seatrial_api.rules import Rule

API_GROUP = "seatrial.dev"
API_VERSION = "v1alpha1"

ApiVersion = Literal["seatrial.dev/v1alpha1"]
"""API group and version of all our kinds."""

_NAME = ".metadata.name"

LABEL_NAME_RULE = Rule(
    "size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "the name {self.metadata.name} becomes a label's value: at most 63 lower-case letters, digits and hyphens; rename "
    "the object",
    _NAME,
)
"""Kubernetes itself allows dots, and 253 characters."""

SERVICE_NAME_RULES = (
    Rule(
        "size(self.metadata.name) <= 39",
        "the name {self.metadata.name} is longer than 39 characters, which leaves no room for the names of its "
        "RayJobs; shorten it",
        _NAME,
    ),
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "the name {self.metadata.name} becomes part of a Service's: it must begin with a letter and hold lower-case "
        "letters, digits and hyphens only; rename the object",
        _NAME,
    ),
)
"""For kinds of which RayClusters are made."""


class ObjectMeta(ApiModel):
    """The part of Kubernetes metadata that a manifest for us uses."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the object."""
    namespace: Name | None = None
    """Namespace of the object."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""
