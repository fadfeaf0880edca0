"""Builders of step records for tests."""

from dataclasses import fields
from typing import Any

from seatrial_trainer.observability.step_record import StepRecord


def make_step(**changes: Any) -> StepRecord:
    """A healthy step with some fields changed."""
    healthy = {field.name: 0.1 if field.type is float else 0 for field in fields(StepRecord)}
    mappings: dict[str, Any] = {"rewards_by_domain": {}, "rewards_by_staleness": {}, "staleness": {}}
    defaults = mappings | {"error_rate_by_length_quartile": (), "error_rate": 0.0}
    return StepRecord(**(healthy | defaults | changes))
