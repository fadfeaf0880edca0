"""Our strategic merge against Kubernetes' own, `kubectl patch --local`."""

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hack.cluster import Grade, MissingPartsError
from hack.cluster.layout import BIN
from hack.cluster.machine import require
from seatrial_operator.manifests.pod_template import merge

NAMES = st.sampled_from(["a", "b", "c", "ray"])
SMALL = st.sampled_from(["1", "2"])
DELETED = st.fixed_dictionaries({"$patch": st.just("delete")})


def listed(key: str, identity: st.SearchStrategy[Any], fields: dict[str, st.SearchStrategy[Any]]) -> Any:
    """Lists of items with an identity, each at most once."""
    item = st.fixed_dictionaries({key: identity}, optional=fields)
    return st.lists(item, max_size=3, unique_by=lambda item: item[key])


def patched(key: str, identity: st.SearchStrategy[Any], fields: dict[str, st.SearchStrategy[Any]]) -> Any:
    """The same with directives and nulls in it."""
    nulled = {name: st.one_of(st.none(), value) for name, value in fields.items()}
    item = st.fixed_dictionaries({key: identity}, optional=nulled)
    deleted = st.builds(lambda value: {key: value, "$patch": "delete"}, identity)
    items = st.lists(st.one_of(item, deleted), max_size=3, unique_by=lambda item: item[key])
    return st.one_of(items, st.builds(lambda some: [{"$patch": "replace"}, *some], items))


def template(
    lists: Any, maps: st.SearchStrategy[Any], scalars: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """PodTemplateSpecs out of lists, maps and scalars of one kind."""
    container = {
        "image": scalars,
        "args": st.lists(SMALL, max_size=2),
        "env": lists("name", NAMES, {"value": SMALL}),
        "ports": lists("containerPort", st.sampled_from([1, 2, 3]), {"name": NAMES}),
        "volumeMounts": lists("mountPath", st.sampled_from(["/a", "/b"]), {"name": NAMES}),
        "securityContext": maps,
    }
    spec = {
        "containers": lists("name", NAMES, container),
        "initContainers": lists("name", NAMES, container),
        "volumes": lists("name", NAMES, {"emptyDir": st.fixed_dictionaries({}, optional={"medium": SMALL})}),
        "imagePullSecrets": lists("name", NAMES, {}),
        "topologySpreadConstraints": lists("topologyKey", NAMES, {"maxSkew": st.integers(1, 2)}),
        "hostAliases": lists("ip", SMALL, {"hostnames": st.lists(SMALL, max_size=2)}),
        "tolerations": st.lists(st.fixed_dictionaries({"key": NAMES}), max_size=2),
        "nodeSelector": maps,
        "schedulerName": scalars,
    }
    return st.fixed_dictionaries({}, optional={"metadata": st.just({"labels": {"a": "1"}}), "spec": _optional(spec)})


def _optional(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


MAPS = st.dictionaries(NAMES, SMALL, max_size=2)
BASES = template(listed, MAPS, SMALL)
PATCHES = template(
    patched,
    st.one_of(
        DELETED,
        st.builds(lambda some: {"$patch": "replace", **some}, MAPS),
        st.dictionaries(NAMES, st.one_of(st.none(), SMALL), max_size=2),
    ),
    st.one_of(st.none(), SMALL),
)


def merged_by_kubernetes(base: dict[str, Any], patch: dict[str, Any]) -> Any:
    whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": base}
    words = [
        *(str(BIN / "kubectl"), "patch", "--local", "--type=strategic", "-o", "json", "-f", "-"),
        *("-p", json.dumps({"template": patch})),
    ]
    done = subprocess.run(words, input=json.dumps(whole), capture_output=True, text=True, check=True)
    return tidied(json.loads(done.stdout).get("template", {}))


def tidied(value: Any) -> Any:
    """`kubectl` leaves nulls and directives in items that it adds, where they mean nothing."""
    if isinstance(value, dict):
        return {key: tidied(item) for key, item in value.items() if item is not None and not is_directed(item)}
    return [tidied(item) for item in value if not is_directed(item)] if isinstance(value, list) else value


def is_directed(value: Any) -> bool:
    return isinstance(value, dict) and "$patch" in value


@pytest.fixture(scope="module", autouse=True)
def _kubectl() -> None:
    try:
        require(Grade.CONTROL_PLANE)
    except MissingPartsError as error:
        pytest.skip(str(error))


@settings(max_examples=60)
@given(BASES, PATCHES)
def test_a_merge_is_the_one_of_kubernetes(base: dict[str, Any], patch: dict[str, Any]) -> None:
    assert tidied(merge(base, patch)) == merged_by_kubernetes(base, patch)
