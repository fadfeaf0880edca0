"""The one pydantic base of every API object and record."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """Frozen, strict about unknown fields, camelCase outside and snake_case inside.

    Attribute docstrings become the descriptions in the CRDs and in the reference pages.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",
    )


Positive = Annotated[int, Field(ge=1)]
"""A count of at least one."""

NonNegative = Annotated[int, Field(ge=0)]
"""A count that may be zero."""

Seconds = Annotated[float, Field(gt=0)]
"""A duration in seconds."""

Fraction = Annotated[float, Field(ge=0, le=1)]
"""A share between 0 and 1."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A DNS label."""

Auto = Literal["Auto"]

ImageReference = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][A-Za-z0-9._:/-]*(@sha256:[a-f0-9]{64})?$", max_length=512),
]
"""`registry/repository:tag`, or `registry/repository@sha256:digest`."""

FilePath = Annotated[str, Field(min_length=1, max_length=1024)]
"""A path."""
