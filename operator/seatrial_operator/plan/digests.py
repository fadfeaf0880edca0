"""Short fingerprints of parts of a spec, to tell whether they changed since somebody took them over."""

import hashlib
from collections.abc import Iterable, Mapping

from seatrial_api.base import ApiModel
from seatrial_api.driver_request import LiveSettings
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.stages import StageSpec

_CHARS = 12


def digest(model: ApiModel) -> str:
    """Fingerprint of one object."""
    return hashlib.sha256(model.model_dump_json(by_alias=True).encode()).hexdigest()[:_CHARS]


def live_settings(spec: RLRunSpec) -> LiveSettings:
    """What a driver takes over while it runs."""
    return LiveSettings(concurrency=spec.async_.concurrency, guards=spec.guards)


def stages_text(stages: Iterable[StageSpec]) -> str:
    """Stages with their fingerprints, for an annotation: `preflight=0a1b2c3d4e5f,train=…`."""
    return ",".join(f"{stage.name}={digest(stage)}" for stage in stages)


def changed_stages(text: str, stages: Mapping[str, StageSpec]) -> list[str]:
    """Names of the stages in an annotation's `text` that are other stages now, or none."""
    given = dict(item.split("=", 1) for item in text.split(",") if "=" in item)
    return [name for name, mark in given.items() if name not in stages or digest(stages[name]) != mark]
