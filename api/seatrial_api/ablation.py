"""Arms of an Ablate stage: variants of a run, as JSON merge patches of its spec (RFC 7386)."""

from typing import Any

from pydantic import ValidationError

from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.rules import stored_form
from seatrial_api.spec.stages import AblateArm

PATCHABLE = ("algorithm", "async", "harness", "trainer")
"""Parts of the spec that an arm may change: all arms share model, tasks, nodes and engines."""


def patched_spec(spec: RLRunSpec, arm: AblateArm) -> RLRunSpec:
    """The spec that an arm runs.

    Raises:
        InvalidInputError: if the patch touches what arms share, or makes an invalid spec.
    """
    foreign = sorted(set(arm.patch) - set(PATCHABLE))
    if foreign:
        raise InvalidInputError(
            f"arm {arm.name} patches {', '.join(foreign)}, which all arms share; patch {', '.join(PATCHABLE)} only"
        )
    try:
        patched = RLRunSpec.model_validate(merge_patch(stored_form(spec), arm.patch), by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(key) for key in first["loc"])
        raise InvalidInputError(f"arm {arm.name} makes an invalid spec: {place}: {first['msg']}") from error
    for field, changed in (
        ("async.weightSync.method", patched.async_.weight_sync.method != spec.async_.weight_sync.method),
        ("async.concurrency", patched.async_.concurrency != spec.async_.concurrency),
    ):
        if changed:
            raise InvalidInputError(f"arm {arm.name} patches {field}, which the engines of all arms share; remove it")
    return patched


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` merged in; an explicit null takes a key out (RFC 7386, section 2)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged
