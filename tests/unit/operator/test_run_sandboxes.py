"""What the operator makes for a run whose trials are tried in pods."""

from typing import Any

from seatrial_api.playbook import segments_of
from seatrial_api.rlrun import RLRun
from seatrial_api.sandboxes import BROKER_AUDIENCE, BROKER_TOKEN_FILE, BROKER_VARIABLE, RUN_VARIABLE
from seatrial_api.warm_sandboxes import sandbox_pools
from seatrial_operator.config import OperatorConfig, SandboxesConfig
from seatrial_operator.manifests.checks import problems
from seatrial_operator.manifests.pool import rollout_pool
from seatrial_operator.manifests.rayjob import ray_job
from seatrial_operator.plan.actions import ApplyPool
from tests.manifests import run_manifest
from tests.run_world import RunWorld

IN_PODS: dict[str, Any] = {
    "spec__sandbox": {"provider": "kubernetes", "world": "acme"},
    "spec__async__weightSync": {"method": "gloo"},
    "spec__storage": {"pvc": {"claim": "runs"}},
    "spec__topology": {"nodes": 2, "gpusPerNode": 8},
}
CONFIG = OperatorConfig(sandboxes=SandboxesConfig(address="broker.seatrial.svc:8092"))


def run_of(**changes: Any) -> RLRun:
    return RLRun.model_validate(run_manifest(**(IN_PODS | changes)))


def templates(run: RLRun) -> dict[str, dict[str, Any]]:
    """Pods of the run by role."""
    segment = segments_of(run.spec.stages, "Run")[0]
    cluster = ray_job(run, "uid", segment, 0, CONFIG)["spec"]["rayClusterSpec"]
    workers = {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **workers}


def test_the_pods_that_run_trials_reach_the_broker_and_no_others() -> None:
    pods = templates(run_of())
    assert pods.keys() == {"head", "rollout", "train", "agents"}
    for role, template in pods.items():
        env = {one["name"]: one.get("value") for one in template["spec"]["containers"][0]["env"]}
        tokens = [
            source["serviceAccountToken"]
            for volume in template["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", ())
        ]
        mounts = [one["mountPath"] for one in template["spec"]["containers"][0]["volumeMounts"]]
        if role == "agents":
            assert (env[BROKER_VARIABLE], env[RUN_VARIABLE]) == ("broker.seatrial.svc:8092", run_of().metadata.name)
            assert [(one["audience"], one["expirationSeconds"]) for one in tokens] == [(BROKER_AUDIENCE, 600)]
            assert str(BROKER_TOKEN_FILE.parent) in mounts
        else:
            assert BROKER_VARIABLE not in env
            assert tokens == []
        assert template["spec"]["automountServiceAccountToken"] is False


def test_a_run_with_other_sandboxes_has_no_token() -> None:
    local = templates(run_of(spec__sandbox={"provider": "local"}))
    assert "projected" not in str(local)


def test_a_world_that_the_run_only_names_gets_sandboxes_for_a_group_and_room_for_all_trials() -> None:
    run = run_of(spec__algorithm__groupSize=8, spec__harness__limits__wallTimeoutSeconds=9000)
    (pool,) = rollout_pool(run, "uid")["spec"]["sandboxes"]
    agents = run.spec.topology.agents
    places = agents.replicas * agents.hosts_per_replica * agents.trials_per_host
    assert (pool["world"], pool["warmMin"], pool["lifetimeSeconds"]) == ("acme", 8, 9000)
    assert pool["ceiling"] == places + pool["warmMax"]


def test_what_the_run_says_of_its_world_stands() -> None:
    listed = [{"world": "acme", "warmMin": 1, "ceiling": 70}, {"world": "other"}]
    assert [one.world for one in sandbox_pools(run_of(spec__rollout__sandboxes=listed).spec)] == ["acme", "other"]
    assert sandbox_pools(run_of(spec__rollout__sandboxes=listed).spec)[0].ceiling == 70
    assert [one.world for one in sandbox_pools(run_of(spec__rollout__sandboxes=listed[1:]).spec)] == ["acme", "other"]
    assert sandbox_pools(run_of(spec__sandbox={"provider": "local"}).spec) == []


def test_a_run_that_rests_keeps_no_sandboxes() -> None:
    assert rollout_pool(run_of(), "uid", keeps_sandboxes=False)["spec"]["sandboxes"] == []


def test_an_operator_that_knows_no_broker_says_so() -> None:
    (problem,) = problems(run_of(), OperatorConfig())
    assert problem.path == "spec.sandbox.provider"
    assert "config.sandboxes.address" in problem.message
    assert problems(run_of(), CONFIG) == []


def pools_of(world: RunWorld, rounds: int) -> list[bool]:
    """Whether the run keeps sandboxes, each time that its pool is written."""
    kept = []
    for _ in range(rounds):
        world.turn()
        kept += [one.keeps_sandboxes for one in world.reconcile().actions if isinstance(one, ApplyPool)]
    return kept


def test_sandboxes_go_with_the_nodes_and_come_back_with_them() -> None:
    world = RunWorld.of(**IN_PODS, spec__topology__hold="Run")
    assert pools_of(world, 60) == [True, False]
    suspended = RunWorld.of(**IN_PODS, spec__topology__hold="Run")
    assert pools_of(suspended, 3)[0]
    suspended.edit(**IN_PODS, spec__topology__hold="Run", spec__suspend=True)
    assert pools_of(suspended, 20)[-1] is False
    suspended.edit(**IN_PODS, spec__topology__hold="Run")
    assert pools_of(suspended, 60) == [True, False]


def test_a_run_without_pods_for_sandboxes_writes_its_pool_once_an_attempt() -> None:
    assert pools_of(RunWorld.of(spec__topology={"nodes": 2, "gpusPerNode": 8, "hold": "Run"}), 60) == [True]
