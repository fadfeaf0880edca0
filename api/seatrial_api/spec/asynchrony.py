"""How far generation may run ahead of training."""

from typing import ClassVar, Literal

from seatrial_api.base import ApiModel, Auto, NonNegative, Positive, Seconds
from seatrial_api.rules import Rule, RuledModel, immutable


class WeightSyncSpec(ApiModel):
    """How new weights reach the engines."""

    method: Literal["nccl", "gloo", "files"] = "nccl"
    """Collective over GPUs, collective over sockets, or safetensors on shared storage."""
    clear_kv_cache: bool = False
    """Recompute the keys and values of running requests under the new weights."""
    timeout_seconds: Seconds = 300.0
    """Deadline of one transfer."""
    verify_checksums: bool = False
    """For debugging: after each transfer compare by SHA-256 what engines hold and, with `gloo`, what was sent."""


class AsyncSpec(RuledModel):
    """Asynchrony of the Train stage."""

    rules: ClassVar[tuple[Rule, ...]] = immutable("maxStalenessSteps", "weightSync")

    max_staleness_steps: NonNegative = 3
    """S: a group started at version v is due in the step that turns version v + S into v + S + 1; 0 is synchronous."""
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """Weight transfer."""
    concurrency: Auto | Positive = "Auto"
    """Trials in flight: a number, or `Auto` to follow the engines' KV usage under both ceilings."""
