"""What a dashboard is made of; `hack/dashboards.py` draws it.

`$__rate_interval` and the variables of a query are Grafana's. A query names only metrics of `seatrial_api.metrics`, or
of Prometheus itself; tests run each of them in a real Prometheus over what a real run exported.
"""

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """How a panel is drawn."""

    LINES = "lines"
    """A curve a series."""
    STACK = "stack"
    """Curves on top of each other: parts of a whole."""
    NUMBER = "number"
    """The newest value."""
    NAME = "name"
    """The label of the series that is 1."""
    HEATMAP = "heatmap"
    """A histogram over time."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel."""

    title: str
    meaning: str
    """What a person reads from it, and what is healthy."""
    queries: tuple[Query, ...]
    unit: str = "short"
    form: Form = Form.LINES
    span: int = 8
    """Width, of 24."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]
