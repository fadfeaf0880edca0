"""Strategic merge of a podTemplate: what a user may expect of Kubernetes, case by case."""

from typing import Any

import pytest

from seatrial_operator.manifests.pod_template import PodTemplateError, merge

BASE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "ray",
                "image": "ray:1",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "metrics", "containerPort": 8080}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
}


def container(partial: dict[str, Any]) -> dict[str, Any]:
    """The Ray container after a merge into it."""
    merged = merge(BASE, {"spec": {"containers": [{"name": "ray", **partial}]}})
    only: dict[str, Any] = merged["spec"]["containers"][0]
    return only


def test_an_empty_template_changes_nothing() -> None:
    assert merge(BASE, {}) == BASE


def test_neither_side_is_changed() -> None:
    merged = merge(BASE, {"spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]}})
    merged["spec"]["volumes"][0]["emptyDir"].clear()
    assert BASE["spec"]["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory"}}


def test_environment_merges_by_name_and_new_variables_come_first() -> None:
    env = container({"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]})["env"]
    assert {item["name"]: item["value"] for item in env} == {"A": "1", "B": "3", "C": "4"}
    assert [item["name"] for item in env] == ["A", "B", "C"]


def test_a_mount_is_told_by_its_path_and_a_port_by_its_number() -> None:
    merged = container(
        {
            "volumeMounts": [{"name": "fast", "mountPath": "/dev/shm"}],
            "ports": [{"name": "other", "containerPort": 8080}],
        }
    )
    assert merged["volumeMounts"] == [{"name": "fast", "mountPath": "/dev/shm"}]
    assert merged["ports"] == [{"name": "other", "containerPort": 8080}]


def test_maps_merge_key_by_key_and_a_null_takes_a_key_out() -> None:
    merged = merge(BASE, {"spec": {"securityContext": {"runAsUser": 0, "fsGroup": None}}})
    assert merged["spec"]["securityContext"] == {"runAsUser": 0}


@pytest.mark.parametrize(
    ("partial", "place", "expected"),
    [
        ({"tolerations": [{"operator": "Exists"}]}, "tolerations", [{"operator": "Exists"}]),
        ({"nodeSelector": {"a": "b"}}, "nodeSelector", {"a": "b"}),
        ({"containers": [{"name": "side", "image": "x"}]}, "containers", None),
    ],
)
def test_lists_without_an_identity_are_replaced_and_new_items_are_added(
    partial: dict[str, Any], place: str, expected: Any
) -> None:
    merged = merge(BASE, {"spec": partial})["spec"]
    if expected is None:
        assert [item["name"] for item in merged["containers"]] == ["side", "ray"]
    else:
        assert merged[place] == expected


def test_capabilities_are_one_list_that_is_replaced() -> None:
    merged = container({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}})
    assert merged["securityContext"] == {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}


def test_an_item_is_deleted_or_replaced_by_directive() -> None:
    assert container({"env": [{"name": "A", "$patch": "delete"}]})["env"] == [{"name": "B", "value": "2"}]
    assert container({"env": [{"$patch": "replace"}, {"name": "C", "value": "4"}]})["env"] == [
        {"name": "C", "value": "4"}
    ]
    merged = merge(BASE, {"spec": {"securityContext": {"$patch": "replace", "runAsUser": 0}}})
    assert merged["spec"]["securityContext"] == {"runAsUser": 0}
    merged = merge(BASE, {"spec": {"securityContext": {"$patch": "delete"}}})
    assert merged["spec"]["securityContext"] == {}


def test_a_volume_changes_its_kind_by_retaining_keys() -> None:
    volume = {"name": "shm", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/dev/shm"}}
    merged = merge(BASE, {"spec": {"volumes": [volume]}})
    assert merged["spec"]["volumes"] == [{"name": "shm", "hostPath": {"path": "/dev/shm"}}]


@pytest.mark.parametrize(
    ("partial", "path", "problem"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]", "told apart by name"),
        ({"spec": {"containers": ["ray"]}}, "spec.containers[0]", "told apart by name"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0]", "told apart by name"),
        ({"spec": {"volumes": [{"$patch": "delete"}]}}, "spec.volumes[0]", "told apart by name"),
        ({"spec": {"$setElementOrder/volumes": []}}, "spec.$setElementOrder/volumes", "not supported"),
        ({"spec": {"$patch": "merge"}}, "spec.$patch", "neither delete nor replace"),
        ({"spec": {"volumes": [{"name": "a", "$patch": "burn"}]}}, "spec.volumes[0].$patch", "neither delete nor"),
        (
            {"spec": {"volumes": [{"name": "shm", "$retainKeys": ["name"], "hostPath": {"path": "/"}}]}},
            "spec.volumes[shm].$retainKeys",
            "must list every key",
        ),
        ({"spec": {"volumes": [{"name": "shm", "$retainKeys": "name"}]}}, "spec.volumes[shm].$retainKeys", "must list"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_its_place(partial: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(PodTemplateError, match=problem) as caught:
        merge(BASE, partial)
    assert caught.value.path == path
