"""Kubernetes' strategic merge of a partial PodTemplateSpec, as `kubectl patch --type=strategic` does it.

Maps merge key by key and an explicit null takes a key out. Lists of items with an identity merge item by item, all
other lists replace what was there. `$patch: delete` and `$patch: replace` in a map or an item, and `$retainKeys` in a
map, do what they do there.
"""

import copy
from collections.abc import Sequence
from typing import Any

from seatrial_api.errors import InvalidInputError

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""Lists whose items have an identity, and the field that is it. Within a PodTemplateSpec a name means one list."""

_PATCH = "$patch"
_RETAIN_KEYS = "$retainKeys"


class PodTemplateError(InvalidInputError):
    """A partial PodTemplateSpec that cannot be merged."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        """The faulty field, from the template on: `spec.containers[0].env`."""
        self.problem = problem
        """What is wrong and the way out."""
        super().__init__(f"{path}: {problem}")


def merge(base: dict[str, Any], partial: dict[str, Any]) -> dict[str, Any]:
    """`base` with `partial` merged in; neither is changed.

    Raises:
        PodTemplateError: if an item lacks its identity, or a directive is not one of those above.
    """
    return _merge_map(base, partial, "")


def _merge_map(base: dict[str, Any], patch: dict[str, Any], path: str) -> dict[str, Any]:
    directive = patch.get(_PATCH)
    if directive is not None:
        return _directed(directive, patch, path)
    merged = _retained(base, patch, path)
    for key, value in patch.items():
        below = f"{path}.{key}" if path else key
        if key == _RETAIN_KEYS:
            continue
        if key.startswith("$"):
            raise PodTemplateError(below, f"this directive is not supported; use {_PATCH} or {_RETAIN_KEYS}")
        former = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(former, dict):
            merged[key] = _merge_map(former, value, below)
        elif isinstance(value, list) and isinstance(former, list) and key in _MERGE_KEYS:
            merged[key] = _merge_list(former, value, _MERGE_KEYS[key], below)
        elif isinstance(former, list):
            merged[key] = copy.deepcopy(value)
        elif not _is_directed(value):
            merged[key] = _cleaned(value)
    return merged


def _retained(base: dict[str, Any], patch: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy of what `$retainKeys` keeps of `base`; all of it without."""
    if _RETAIN_KEYS not in patch:
        return copy.deepcopy(base)
    keys = patch[_RETAIN_KEYS]
    given = [key for key, value in patch.items() if value is not None and key != _RETAIN_KEYS]
    if not isinstance(keys, list) or not all(key in keys for key in given):
        raise PodTemplateError(f"{path}.{_RETAIN_KEYS}", "it must list every key that is set beside it")
    return copy.deepcopy({key: value for key, value in base.items() if key in keys})


def _directed(directive: Any, patch: dict[str, Any], path: str) -> dict[str, Any]:
    match directive:
        case "delete":
            return {}
        case "replace":
            return {key: copy.deepcopy(value) for key, value in patch.items() if key != _PATCH}
        case _:
            raise PodTemplateError(f"{path}.{_PATCH}", f"{directive!r} is neither delete nor replace")


def _merge_list(base: list[Any], patch: list[Any], merge_key: str, path: str) -> list[Any]:
    for index, item in enumerate(patch):
        _check_item(item, merge_key, f"{path}[{index}]")
    deleted = [item[merge_key] for item in patch if item.get(_PATCH) == "delete"]
    ordinary = [item for item in patch if _PATCH not in item]
    if any(item.get(_PATCH) == "replace" for item in patch):
        return copy.deepcopy(ordinary)
    kept = [item for item in base if _identity(item, merge_key) not in deleted]
    merged = {_identity(item, merge_key): item for item in kept}
    for item in ordinary:
        identity = item[merge_key]
        former = merged.get(identity)
        merged[identity] = _cleaned(item) if former is None else _merge_map(former, item, f"{path}[{identity}]")
    identities = _ordered(
        [_identity(item, merge_key) for item in kept], list(dict.fromkeys(item[merge_key] for item in ordinary))
    )
    return [copy.deepcopy(merged[identity]) for identity in identities]


def _check_item(item: Any, merge_key: str, path: str) -> None:
    directive = item.get(_PATCH) if isinstance(item, dict) else None
    if directive not in (None, "delete", "replace"):
        raise PodTemplateError(f"{path}.{_PATCH}", f"{directive!r} is neither delete nor replace")
    if directive != "replace" and not isinstance(_identity(item, merge_key), str | int):
        raise PodTemplateError(path, f"an item here is told apart by {merge_key}; set it, to a text or a number")


def _identity(item: Any, merge_key: str) -> Any:
    return item.get(merge_key) if isinstance(item, dict) else None


def _ordered(former: Sequence[Any], patched: Sequence[Any]) -> list[Any]:
    """Patched items in the patch's order; others keep theirs, and come before a patched one only if they did so."""
    others = [identity for identity in former if identity not in patched]
    ordered: list[Any] = []
    for identity in patched:
        while others and identity in former and former.index(others[0]) < former.index(identity):
            ordered.append(others.pop(0))
        ordered.append(identity)
    return ordered + others


def _is_directed(value: Any) -> bool:
    return isinstance(value, dict) and _PATCH in value


def _cleaned(value: Any) -> Any:
    """A value that nothing in the base corresponds to: directives and nulls in it have nothing to act on."""
    if isinstance(value, dict):
        return {
            key: _cleaned(item)
            for key, item in value.items()
            if item is not None and not key.startswith("$") and not _is_directed(item)
        }
    if isinstance(value, list):
        return [_cleaned(item) for item in value if not _is_directed(item)]
    return value
