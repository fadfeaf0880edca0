"""What the watches told: the newest version stands, namesakes are told apart, and what is gone leaves nothing."""

from typing import Any

import pytest

from seatrial_api.conditions import RunPhase
from seatrial_operator.kube.resources import ObjectKey
from seatrial_operator.plan.observed import STAGES_ANNOTATION
from seatrial_operator.services.reading import UnreadableRunError, read_pod
from seatrial_operator.services.run_store import RunStore
from tests.manifests import run_manifest
from tests.run_world import CLUSTER_RUN

KEY = ObjectKey("RLRun", "team", "run")


def run(version: int, uid: str = "uid", **changes: Any) -> dict[str, Any]:
    item = run_manifest(**(CLUSTER_RUN | changes))
    item["metadata"] |= {
        "namespace": "team",
        "uid": uid,
        "generation": 1,
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "a"},
    }
    return item


def job(uid: str = "job", owner: str = "uid", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "run-s1-a2",
            "namespace": "team",
            "uid": uid,
            "labels": {"seatrial.dev/run": "run", "seatrial.dev/segment": "1", "seatrial.dev/attempt": "2"},
            "annotations": {STAGES_ANNOTATION: "train=0a1b2c"},
            "ownerReferences": [{"uid": owner}],
        },
        "spec": {"suspend": False, "rayClusterSpec": {"headGroupSpec": {}}},
        "status": status,
    }


def pod(**status: Any) -> dict[str, Any]:
    labels = {"seatrial.dev/run": "run", "seatrial.dev/role": "head", "ray.io/cluster": "run-s1-a2-x"}
    return {"metadata": {"name": "p", "namespace": "team", "uid": "p1", "labels": labels}, "status": status}


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    store = RunStore()
    store.notice_run(run(9, spec__suspend=True), is_gone=False)
    assert store.notice_run(run(7), is_gone=False) == [KEY]
    seen = store.run(KEY)
    assert seen is not None
    assert (seen.resource_version, seen.spec.suspend) == ("9", True)
    assert seen.run.metadata.annotations == {"team": "a"}


def test_a_spec_is_read_once_a_generation_and_all_else_with_each_version() -> None:
    store = RunStore()
    first = store.keep_run(KEY, run(1))
    later = run(2) | {"status": {"phase": "Running"}}
    later["metadata"]["annotations"] = {"team": "b"}
    second = store.keep_run(KEY, later)
    assert second.spec is first.spec
    assert (second.status.phase, second.run.metadata.annotations) == (RunPhase.RUNNING, {"team": "b"})
    changed = run(3, spec__suspend=True)
    changed["metadata"]["generation"] = 2
    assert store.keep_run(KEY, changed).spec.suspend
    namesake = run(4, uid="another")
    namesake["metadata"]["generation"] = 2
    assert not store.keep_run(KEY, namesake).spec.suspend


def test_the_end_of_a_namesake_does_not_take_its_successor_along() -> None:
    store = RunStore()
    store.notice_run(run(9, uid="new"), is_gone=False)
    store.notice_run(run(8, uid="old"), is_gone=True)
    assert store.run(KEY) is not None
    store.notice_job(job(uid="new"), is_gone=False)
    store.notice_job(job(uid="old"), is_gone=True)
    assert len(store.jobs(KEY, "uid")) == 1


def test_a_job_is_read_with_its_attempt_and_its_owner() -> None:
    store = RunStore()
    told = {"rayClusterName": "c", "jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "exit 1"}
    assert store.notice_job(job(**told), is_gone=False) == [KEY]
    (seen,) = store.jobs(KEY, "uid")
    assert (seen.segment, seen.attempt, seen.cluster, seen.state) == (1, 2, "c", "Failed")
    assert (seen.message, seen.stages, seen.is_ours) == ("AppFailed: exit 1", "train=0a1b2c", True)
    assert not store.jobs(KEY, "another uid")[0].is_ours


def test_only_a_pod_that_changed_for_us_asks_for_a_look() -> None:
    store = RunStore()
    assert store.notice_pod(pod(phase="Pending"), is_gone=False) == [KEY]
    assert store.notice_pod(pod(phase="Pending", startTime="later"), is_gone=False) == []
    assert store.notice_pod(pod(phase="Running"), is_gone=False) == [KEY]
    assert store.notice_pod(pod(phase="Running"), is_gone=True) == [KEY]
    assert store.pods(KEY) == ()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]},
            "Unschedulable: 0/3",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "ImagePullBackOff: no such image",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)
def test_a_pod_says_what_it_waits_for(status: dict[str, Any], words: str) -> None:
    assert read_pod(pod(**status)).waits_for == words


def test_a_run_of_another_version_is_named_with_its_fields_and_still_asks_for_a_look() -> None:
    store = RunStore()
    other = run(1, spec__model__quantum=True)
    assert store.notice_run(other, is_gone=False) == [KEY]
    with pytest.raises(UnreadableRunError, match=r"model\.quantum: Extra inputs"):
        store.keep_run(KEY, other)


def test_what_is_gone_leaves_nothing() -> None:
    store = RunStore()
    for is_gone in (False, True):
        store.notice_run(run(1), is_gone=is_gone)
        store.notice_job(job(), is_gone=is_gone)
        store.notice_pod(pod(), is_gone=is_gone)
    assert store == RunStore()
