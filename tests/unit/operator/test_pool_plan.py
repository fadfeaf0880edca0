"""What a RolloutPool comes to, table by table."""

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from seatrial_api.playbook import ExitCode
from seatrial_api.progress import Progress
from seatrial_api.rollout_pool import CeilingsStatus, EngineStatus, RolloutPoolStatus
from seatrial_api.serving import PoolReport, ServingRequest
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.serving import pool_cluster, pool_secret, pool_service, scaled, spec_digest
from seatrial_operator.plan.observed import PodSeen
from seatrial_operator.plan.pools import (
    ClusterSeen,
    DeleteCluster,
    MakeCluster,
    MakeService,
    PoolAction,
    PoolSeen,
    RunView,
    Scale,
    owned_status,
    plan_serving,
    serving_status,
    spec_problems,
)
from tests.pools import owned_pool, pool

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
CONFIG = OperatorConfig()
DIGEST = spec_digest(pool().spec)


def cluster(digest: str = DIGEST, replicas: int = 2, *, is_deleting: bool = False) -> ClusterSeen:
    """The RayCluster of the pool."""
    return ClusterSeen("uid", digest, replicas, is_deleting)


@pytest.mark.parametrize(
    ("seen", "actions"),
    [
        (PoolSeen(), [MakeCluster(), MakeService()]),
        (PoolSeen(cluster(), has_token=True, has_service=True), []),
        (PoolSeen(cluster(), has_token=True), [MakeService()]),
        (PoolSeen(cluster(replicas=1), has_token=True, has_service=True), [Scale(2)]),
        (PoolSeen(cluster("other"), has_token=True, has_service=True), [DeleteCluster("uid")]),
        (PoolSeen(cluster(), has_service=True), [DeleteCluster("uid")]),
        (PoolSeen(cluster("other", is_deleting=True), has_service=True), []),
        (PoolSeen(problems=("spec.x: wrong",)), []),
        (PoolSeen(taken="Service office"), []),
    ],
)
def test_a_pool_is_made_scaled_or_made_anew(seen: PoolSeen, actions: list[PoolAction]) -> None:
    assert plan_serving(pool().spec, seen) == actions


@pytest.mark.parametrize(
    ("change", "is_made_anew"),
    [
        ({"engines": {"replicas": 9}}, False),
        ({"engines": {"replicas": 2, "maxNumSeqs": 8}}, True),
        ({"role": {"image": "mine:1"}}, True),
        ({"sandboxes": [{"world": "acme"}]}, False),
    ],
)
def test_engines_are_made_anew_when_what_they_are_made_of_changes(change: dict[str, Any], is_made_anew: bool) -> None:
    assert (spec_digest(pool(**change).spec) != DIGEST) == is_made_anew


def report(*states: Literal["Ready", "Starting", "Failed"], **failures: str) -> PoolReport:
    """What the serving process answers."""
    engines = [EngineStatus(name=f"e{index}", state=state, weight_version=0) for index, state in enumerate(states)]
    return PoolReport(engines=engines, failures=failures)


def said(status: RolloutPoolStatus) -> list[str]:
    """The conditions in short."""
    return [f"{one.type} {one.status} {one.reason}" for one in status.conditions]


UNREADY = "Ready False EnginesReady"


@pytest.mark.parametrize(
    ("seen", "conditions"),
    [
        (PoolSeen(), ["EnginesReady False Starting", UNREADY]),
        (PoolSeen(cluster(), report=report("Ready", "Starting")), ["EnginesReady False Starting", UNREADY]),
        (PoolSeen(cluster(), report=report("Ready", "Ready")), ["EnginesReady True EnginesReady", "Ready True Ready"]),
        (PoolSeen(cluster(), report=report("Ready", "Failed", e1="OOM")), ["EnginesReady False Degraded", UNREADY]),
        (PoolSeen(problems=("spec.x: wrong",)), ["EnginesReady False InvalidSpec", UNREADY]),
        (PoolSeen(taken="Service office"), ["EnginesReady False NameTaken", UNREADY]),
        (PoolSeen(refused="quota"), ["EnginesReady False Refused", UNREADY]),
    ],
)
def test_conditions_tell_how_the_engines_are(seen: PoolSeen, conditions: list[str]) -> None:
    assert said(serving_status(pool(), 3, seen, NOW)) == conditions


def test_engines_that_were_ready_and_are_not_any_more_are_degraded_until_the_spec_changes() -> None:
    ready = serving_status(pool(), 3, PoolSeen(cluster(), report=report("Ready", "Ready")), NOW)
    one_lost = PoolSeen(cluster(), report=report("Ready", "Starting"))
    assert said(serving_status(pool(ready), 3, one_lost, NOW))[0] == "EnginesReady False Degraded"
    assert said(serving_status(pool(ready), 4, one_lost, NOW))[0] == "EnginesReady False Starting"


def test_the_message_names_what_is_in_the_way() -> None:
    pod = PodSeen("office-abc", "u", -1, -1, "rollout", "office", "Pending", "Unschedulable: no node has a GPU")
    seen = PoolSeen(cluster(), pods=(pod,), report=report("Failed", e0="no model"))
    message = serving_status(pool(), 1, seen, NOW).conditions[0].message
    assert message == "0 of 2 engines answer; e0: no model; pod office-abc: Unschedulable: no node has a GPU"


def test_the_status_serves_kubectl_scale_and_clients() -> None:
    pods = tuple(PodSeen(f"p{i}", "u", -1, -1, "rollout", "office", "Running", is_deleting=i == 0) for i in range(3))
    status = serving_status(pool(), 1, PoolSeen(cluster(), pods, has_service=True, report=report("Ready")), NOW)
    assert (status.replicas, status.ready_replicas) == (2, 1)
    assert status.selector == "seatrial.dev/pool=office,seatrial.dev/role=rollout"
    assert status.endpoint == "http://office.team.svc:8000/v1"


@pytest.mark.parametrize(
    ("name", "spec", "field"),
    [
        ("office", {}, None),
        ("9office", {}, "metadata.name"),
        ("o" * 54, {}, "metadata.name"),
        ("office", {"model": {"source": {"path": "model"}, "contextLength": {"train": 8}}}, "spec.model.source.path"),
        ("office", {"model": {"source": {"path": "/model"}, "contextLength": {"train": 8}}}, None),
        (
            "office",
            {"model": {"source": {"s3": {"uri": "s3://bucket/m"}}, "contextLength": {"train": 8}}},
            "spec.model.source.s3",
        ),
        ("office", {"engines": {"tensorParallel": 2}}, "spec.engines.tensorParallel"),
        (
            "office",
            {"engines": {"tensorParallel": 2}, "role": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}},
            None,
        ),
        ("office", {"role": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}, "spec.engines.tensorParallel"),
    ],
)
def test_a_spec_that_cannot_be_served_is_told_with_the_field(
    name: str, spec: dict[str, Any], field: str | None
) -> None:
    problems = spec_problems(name, pool(**spec).spec)
    assert [problem.partition(": ")[0] for problem in problems] == ([field] if field else [])


def running(name: str = "p", phase: str = "Running", waits_for: str = "") -> PodSeen:
    """A pod of a run's engines."""
    return PodSeen(name, "u", 0, 0, "rollout", "c", phase, waits_for)


TRAINING = Progress(run="office", stage="train", weight_version=7, ceilings={"live": 40.0, "algorithmic": 64.0})


@pytest.mark.parametrize(
    ("view", "conditions"),
    [
        (None, [UNREADY]),
        (RunView((), None), [UNREADY]),
        (RunView((running(),), None), ["EnginesReady False Starting", UNREADY]),
        (RunView((running(),), TRAINING), ["EnginesReady True EnginesReady", "Ready True Ready"]),
        (RunView((running(), running("q", "Pending")), TRAINING), ["EnginesReady False Degraded", UNREADY]),
        (
            RunView((running(),), TRAINING.model_copy(update={"ended": ExitCode.PASSED})),
            ["EnginesReady False Starting", UNREADY],
        ),
    ],
)
def test_a_runs_pool_is_as_ready_as_its_run(view: RunView | None, conditions: list[str]) -> None:
    assert said(owned_status(owned_pool(), 1, view, NOW)) == conditions


def test_a_runs_pool_tells_version_and_ceilings_of_its_run() -> None:
    status = owned_status(owned_pool(), 1, RunView((running(),), TRAINING), NOW)
    assert status.ceilings == CeilingsStatus(live=40, algorithmic=64)
    assert (status.engines[0].weight_version, status.ready_replicas) == (7, 1)
    assert status.selector == "seatrial.dev/run=office,seatrial.dev/role=rollout"


def test_a_driver_that_tells_of_its_engines_is_believed() -> None:
    engines = report("Ready", "Starting").engines
    status = owned_status(owned_pool(), 1, RunView((running(),), TRAINING.model_copy(update={"engines": engines})), NOW)
    assert (status.engines, status.replicas, status.ready_replicas) == (engines, 2, 1)
    assert status.conditions[0].message == "1 of 2 engines serve"


def test_transition_times_stay() -> None:
    before = serving_status(pool(), 1, PoolSeen(), NOW)
    after = serving_status(pool(before), 1, PoolSeen(cluster()), NOW + timedelta(minutes=1))
    assert {one.last_transition_time for one in after.conditions} == {NOW}


def test_the_head_serves_beside_ray_and_offers_nothing() -> None:
    model = pool().spec.model
    assert model is not None
    made = pool_cluster(pool(), "uid", model, CONFIG)
    head = made["spec"]["headGroupSpec"]
    ray = head["template"]["spec"]["containers"][0]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert head["template"]["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    assert "$KUBERAY_GEN_RAY_START_CMD & exec python -m seatrial_rollout.serving" in ray["args"][0]
    assert {"name": "serve", "containerPort": 8000} in ray["ports"]
    [token] = [one for one in ray["env"] if one["name"] == "SEATRIAL_POOL_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "office-serving", "key": "token"}
    assert pool_service(pool(), "uid")["spec"]["selector"].items() <= head["template"]["metadata"]["labels"].items()


def test_engines_are_pods_that_offer_themselves_with_the_model_read_only() -> None:
    model = pool().spec.model
    assert model is not None
    made = pool_cluster(pool(), "uid", model, CONFIG)
    [group] = made["spec"]["workerGroupSpecs"]
    mounts = group["template"]["spec"]["containers"][0]["volumeMounts"]
    assert (group["replicas"], group["groupName"]) == (2, "rollout")
    assert "seatrial_rollout" in group["rayStartParams"]["resources"]
    assert {"name": "seatrial-model", "mountPath": "/seatrial/pvc/models", "readOnly": True} in mounts
    changed = scaled(made["spec"], 5)["workerGroupSpecs"][0]
    assert (changed["replicas"], changed["minReplicas"], changed["maxReplicas"]) == (5, 5, 5)
    assert changed["template"] == group["template"]


def test_the_secret_holds_what_the_serving_process_reads() -> None:
    model = pool().spec.model
    assert model is not None
    data = {name: b64decode(text) for name, text in pool_secret(pool(), "uid", model, "t0ken")["data"].items()}
    request = ServingRequest.model_validate_json(data["pool.json"])
    assert (request.pool, request.model, data["token"]) == ("office", model, b"t0ken")
    assert json.loads(data["pool.json"])["baseDir"] == "/"
