"""What a step is about to train, and what a checkpoint holds besides the policy."""

from typing import Any

from pydantic import Field

from seatrial_api.base import ApiModel


class BatchManifest(ApiModel):
    """Written before its step: the step can be repeated from it."""

    version: int
    """Weight version that the step starts from; it makes `version` + 1."""
    group_ids: list[str]
    """Groups in training order."""
    scheduler: dict[str, Any] = Field(default_factory=dict)
    """State of the scheduler right after it gave out the batch."""


class CheckpointManifest(ApiModel):
    """Written last: a checkpoint without it does not exist."""

    version: int
    """Weight version of the policy."""
    digests: dict[str, str]
    """SHA-256 of every file by its relative path."""
    state: dict[str, Any] = Field(default_factory=dict)
    """State of the driver: sampler cursor, counters, guards."""
    score: float | None = None
    """Validation pass@1 of this version, if it was measured."""
