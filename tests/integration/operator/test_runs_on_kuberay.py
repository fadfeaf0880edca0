"""RLRuns on the real API server with the real KubeRay; pods are KWOK's, and what would run in them stands in."""

import uuid
from collections.abc import Iterator

import pytest

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from seatrial_api.playbook import ExitCode
from seatrial_api.pods import ROLE_LABEL, RUN_LABEL
from seatrial_api.stage_report import StageResult
from tests.cluster_runs import (
    NAMESPACE,
    ask_to_resume,
    attempts,
    belongings,
    claim,
    conditions,
    get,
    patch,
    start,
    wait,
)
from tests.operator_process import OperatorProcess, operator_config, operator_process
from tests.ray_stand_in import RayStandIn

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator says that a node is lost; its pods go at once."""


@pytest.fixture(scope="module")
def operator(kuberay: Cluster, ray: RayStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operator_process(tmp_path_factory.mktemp("operator"), kuberay.kubeconfig, operator_config(ray.url)) as started:
        yield started


def test_a_run_passes_its_stages_segment_by_segment(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray)
    wait(kuberay, name, ".status.phase", "Succeeded", 120)
    run = get(kuberay, f"rl/{name}")
    assert [row["result"] for row in run["status"]["stages"]] == ["Passed"] * 5
    assert attempts(ray, name) == ["s0-a0", "s1-a0", "s2-a0"]
    assert run["status"]["sandbox"] == "local, not isolated"
    assert set(run["metadata"]).isdisjoint({"finalizers", "annotations"})
    events = get(kuberay, "events", f"--field-selector=involvedObject.name={name}")["items"]
    assert {"AttemptStarted", "StageStarted", "StagePassed", "AllStagesPassed"} <= {one["reason"] for one in events}
    kuberay.kubectl("wait", "--for=delete", "rayjobs", f"--selector={RUN_LABEL}={name}", f"--namespace={NAMESPACE}")
    assert belongings(kuberay, name) == [f"rolloutpool.seatrial.dev/{name}"]
    assert ray.clashes == []


def test_a_failed_gate_ends_the_run_until_a_person_asks_to_go_on(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, results={"before": StageResult.GATE_FAILED})
    wait(kuberay, name, ".status.phase", "Failed")
    assert conditions(kuberay, name)["Failed"] == ("True GateFailed", "stage before: before ended GateFailed")
    ray.results[name] = {}
    ask_to_resume(kuberay, name)
    wait(kuberay, name, ".status.phase", "Succeeded")
    assert conditions(kuberay, name)["Failed"][0] == "False Resumed"
    assert attempts(ray, name) == ["s0-a0", "s0-a1", "s1-a0", "s2-a0"]


def test_a_guarded_run_goes_on_when_its_guards_change(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, results={"train": StageResult.GUARDED})
    wait(kuberay, name, ".status.phase", "Guarded")
    ray.results[name] = {}
    patch(kuberay, name, {"guards": {"maxLogprobDiff": 0.2}})
    wait(kuberay, name, ".status.phase", "Succeeded")
    assert attempts(ray, name) == ["s0-a0", "s1-a0", "s1-a1", "s2-a0"]


def test_suspension_lets_the_driver_stop_and_releases_all_pods(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, held=True)
    wait(kuberay, name, ".status.stage", "preflight")
    driver = ray.driver(name)
    patch(kuberay, name, {"suspend": True})
    wait(kuberay, name, ".status.phase", "Suspended")
    assert driver.is_stopping
    assert driver.ended is ExitCode.INTERRUPTED
    kuberay.kubectl("wait", "--for=delete", "pods", f"--selector={RUN_LABEL}={name}", f"--namespace={NAMESPACE}")
    ray.held.discard(name)
    patch(kuberay, name, {"suspend": False})
    wait(kuberay, name, ".status.phase", "Succeeded")
    assert attempts(ray, name) == ["s0-a0", "s0-a1", "s1-a0", "s2-a0"]
    assert get(kuberay, f"rl/{name}")["status"]["failures"] == 0


def test_a_head_that_is_lost_is_followed_by_the_next_attempt(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, held=True)
    wait(kuberay, name, ".status.stage", "preflight")
    ray.kill(name)
    head = f"--selector={RUN_LABEL}={name},{ROLE_LABEL}=head"
    kuberay.kubectl("delete", "pods", head, f"--namespace={NAMESPACE}")
    wait(kuberay, name, ".status.attempt", "1")
    ray.held.discard(name)
    wait(kuberay, name, ".status.phase", "Succeeded")
    reasons = [one["reason"] for one in get(kuberay, "events", f"--field-selector=involvedObject.name={name}")["items"]]
    assert reasons.count("NodesLost") == 1
    assert attempts(ray, name)[-3:] == ["s0-a1", "s1-a0", "s2-a0"]
    assert ray.clashes == []


def test_a_node_that_is_lost_is_followed_by_the_next_attempt_on_others(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, held=True)
    wait(kuberay, name, ".status.stage", "preflight")
    head = f"--selector={RUN_LABEL}={name},{ROLE_LABEL}=head"
    node = get(kuberay, "pods", head)["items"][0]["spec"]["nodeName"]
    ray.kill(name)
    kuberay.kubectl("taint", "nodes", node, f"{OUT_OF_SERVICE}=gone:NoExecute")
    try:
        wait(kuberay, name, ".status.attempt", "1")
        wait(kuberay, name, ".status.phase", "Running")
        assert {pod["spec"]["nodeName"] for pod in get(kuberay, "pods", head)["items"]} - {node}
        ray.held.discard(name)
        wait(kuberay, name, ".status.phase", "Succeeded")
    finally:
        kuberay.kubectl("taint", "nodes", node, f"{OUT_OF_SERVICE}-")
    assert attempts(ray, name)[-3:] == ["s0-a1", "s1-a0", "s2-a0"]
    assert ray.clashes == []


def test_a_dead_rank_is_followed_by_the_next_attempt(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, held=True)
    wait(kuberay, name, ".status.stage", "preflight")
    ray.held.discard(name)
    ray.driver(name).message, ray.driver(name).ended = "rank 3 died", ExitCode.FAILED
    wait(kuberay, name, ".status.phase", "Succeeded")
    assert attempts(ray, name) == ["s0-a0", "s0-a1", "s1-a0", "s2-a0"]


def test_attempts_end_at_the_bound(kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess) -> None:
    name = start(kuberay, ray, results={"preflight": StageResult.FAILED}, spec__backoffLimit=1)
    wait(kuberay, name, ".status.phase", "Failed")
    reason, message = conditions(kuberay, name)["Failed"]
    assert reason == "True AttemptsExhausted"
    assert "2 attempts in a row ended early without progress, and backoffLimit is 1" in message
    assert attempts(ray, name) == ["s0-a0", "s0-a1"]


def test_safe_changes_reach_the_driver_and_unsafe_ones_are_refused(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, held=True)
    wait(kuberay, name, ".status.stage", "preflight")
    with pytest.raises(CommandError, match="model cannot change after creation"):
        patch(kuberay, name, {"model": {"dtype": "float32"}})
    with pytest.raises(CommandError, match="a stage that has begun cannot change or go"):
        patch(kuberay, name, {"stages": [{"name": "train", "train": {"steps": 1, "validateEverySteps": 0}}]})
    patch(kuberay, name, {"async": {"concurrency": 8}})
    wait(kuberay, name, ".status.observedGeneration", "2")
    settings = ray.driver(name).settings
    assert settings is not None
    assert settings.concurrency == 8
    ray.held.discard(name)
    wait(kuberay, name, ".status.phase", "Succeeded")
    assert attempts(ray, name) == ["s0-a0", "s1-a0", "s2-a0"]


def test_a_job_that_kueue_holds_is_left_to_kueue(kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess) -> None:
    topology = {"nodes": 2, "gpusPerNode": 8, "hold": "Run", "scheduling": {"kueue": {"queue": "gpus"}}}
    name = start(kuberay, ray, spec__topology=topology)
    wait(kuberay, name, ".status.phase", "Queued")
    job = f"rayjob/{name}-s0-a0"
    patch(kuberay, name, {"async": {"concurrency": 8}})
    wait(kuberay, name, ".status.observedGeneration", "2")
    assert get(kuberay, job)["spec"]["suspend"] is True
    kuberay.kubectl("patch", job, f"--namespace={NAMESPACE}", "--type=merge", '--patch={"spec":{"suspend":false}}')
    wait(kuberay, name, ".status.phase", "Succeeded")
    assert attempts(ray, name) == ["s0-a0"]


def test_a_run_waits_for_what_it_names(kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess) -> None:
    storage = f"runs-{uuid.uuid4().hex[:6]}"
    name = start(kuberay, ray, spec__storage={"pvc": {"claim": storage}})
    wait(kuberay, name, ".status.conditions[0].reason", "MissingReference")
    message = conditions(kuberay, name)["Accepted"][1]
    assert message == (
        f"spec.storage.pvc.claim: there is no PersistentVolumeClaim {NAMESPACE}/{storage}; create it, or name another"
    )
    kuberay.apply(*claim(storage))
    wait(kuberay, name, ".status.phase", "Succeeded")


def test_a_run_that_nobody_can_run_says_what_to_change(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, spec__sandbox={"provider": "kubernetes"})
    wait(kuberay, name, ".status.conditions[0].reason", "InvalidSpec")
    assert conditions(kuberay, name)["Accepted"][1].startswith("spec.sandbox.world: ")
    assert belongings(kuberay, name) == []


def test_deleting_a_run_leaves_nothing(kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess) -> None:
    name = start(kuberay, ray, held=True)
    wait(kuberay, name, ".status.stage", "preflight")
    kuberay.kubectl("delete", f"rl/{name}", f"--namespace={NAMESPACE}")
    for kind in ("rayjobs", "rayclusters", "pods", "secrets", "rolloutpools"):
        kuberay.kubectl("wait", "--for=delete", kind, f"--selector={RUN_LABEL}={name}", f"--namespace={NAMESPACE}")
    assert belongings(kuberay, name) == []


def test_a_finished_run_goes_when_its_time_is_over(
    kuberay: Cluster, ray: RayStandIn, operator: OperatorProcess
) -> None:
    name = start(kuberay, ray, spec__ttlSecondsAfterFinished=1)
    kuberay.kubectl("wait", "--for=delete", f"rl/{name}", "--timeout=180s", f"--namespace={NAMESPACE}")
    assert attempts(ray, name) == ["s0-a0", "s1-a0", "s2-a0"]
