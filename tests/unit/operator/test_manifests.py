"""What holds for the objects of every run."""

from base64 import b64decode
from typing import Any

import pytest

from seatrial_api.driver_request import DriverRequest
from seatrial_api.playbook import Segment, segments_of
from seatrial_api.pods import Role
from seatrial_api.rlrun import RLRun
from seatrial_api.rollout_pool import RolloutPool
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.checks import problems, template_path, template_problems
from seatrial_operator.manifests.pool import rollout_pool
from seatrial_operator.manifests.rayjob import pod_counts, ray_job
from seatrial_operator.manifests.rehearsal import blame_pod_template, blame_ray_job, rehearsal, worker_roles
from seatrial_operator.manifests.secret import driver_request, request_secret
from tests.broken_rules import JUDGE, PROVIDER
from tests.manifests import run_manifest

UID = "5ea7a1a1-0000-4000-8000-000000000000"
CONFIG = OperatorConfig()
SPLIT = {"nodes": 6, "inferenceTrainRatio": "4:2", "gpusPerNode": 8}
ROLES = ("head", "rollout", "train", "agents")
CLUSTER: dict[str, Any] = {
    "spec__sandbox": {"provider": "local"},
    "spec__storage": {"pvc": {"claim": "runs", "path": "./team/"}},
}


def a_run(**changes: Any) -> RLRun:
    return RLRun.model_validate(run_manifest(**(CLUSTER | changes)))


def segment(run: RLRun, index: int) -> Segment:
    return segments_of(run.spec.stages, run.spec.topology.hold)[index]


def job(run: RLRun, index: int = 1, attempt: int = 0, config: OperatorConfig = CONFIG) -> dict[str, Any]:
    return ray_job(run, UID, segment(run, index), attempt, config)


def group(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    cluster = manifest["spec"]["rayClusterSpec"]
    if name == "head":
        head: dict[str, Any] = cluster["headGroupSpec"]
        return head
    (found,) = (item for item in cluster["workerGroupSpecs"] if item["groupName"] == name)
    worker: dict[str, Any] = found
    return worker


def container(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    first: dict[str, Any] = group(manifest, name)["template"]["spec"]["containers"][0]
    return first


def names_of_groups(manifest: dict[str, Any]) -> list[str]:
    return [item["groupName"] for item in manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]]


def variables(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return {item["name"]: item.get("value") or item["valueFrom"] for item in container(manifest, name)["env"]}


def test_a_segment_that_trains_has_a_group_for_it_and_one_that_does_not_has_none() -> None:
    run = a_run(spec__topology=SPLIT)
    assert names_of_groups(job(run, 1)) == ["rollout", "train", "agents"]
    assert names_of_groups(job(run, 0)) == ["rollout", "agents"]
    assert pod_counts(run.spec, segment(run, 1)) == {Role.ROLLOUT: 4, Role.TRAIN: 2, Role.AGENTS: 1}


def test_one_node_serves_both_roles_and_offers_both_resources() -> None:
    manifest = job(a_run())
    assert names_of_groups(manifest) == ["rollout", "agents"]
    params = group(manifest, "rollout")["rayStartParams"]
    assert params["resources"] == """'{"seatrial_rollout": 1, "seatrial_train": 1}'"""
    assert params["num-gpus"] == "8"


def test_a_held_run_is_one_segment_with_every_role() -> None:
    run = a_run(spec__topology={**SPLIT, "hold": "Run"})
    assert names_of_groups(job(run, 0)) == ["rollout", "train", "agents"]


def test_the_head_runs_the_driver_and_offers_nothing() -> None:
    manifest = job(a_run(), attempt=3)
    name = "run-s1-a3"
    assert manifest["metadata"]["name"] == name
    assert manifest["spec"]["entrypoint"] == (
        "python -m seatrial_trainer.driver /seatrial/storage/team/run-5ea7a1a1 --request /seatrial/request/run.json"
    )
    head = group(manifest, "head")
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert "resources" not in head["rayStartParams"]
    ports = {port["name"]: port["containerPort"] for port in container(manifest, "head")["ports"]}
    assert ports == {"gcs-server": 6379, "dashboard": 8265, "driver": 8090, "metrics": 8080}
    env = variables(manifest, "head")
    assert env["SEATRIAL_DRIVER_TOKEN"] == {"secretKeyRef": {"name": name, "key": "token"}}
    assert env["SEATRIAL_DRIVER_PORT"] == "8090"
    assert not [key for key in variables(manifest, "agents") if key.startswith("SEATRIAL_DRIVER")]


def test_only_the_head_sees_the_request_and_the_tracker_s_key() -> None:
    manifest = job(a_run(spec__topology=SPLIT, spec__tracking={"wandb": {"project": "p", "secret": "keys"}}))
    for name in ("rollout", "train", "agents"):
        text = str(group(manifest, name))
        assert "seatrial-request" not in text
        assert "WANDB_API_KEY" not in text
    assert variables(manifest, "head")["WANDB_API_KEY"] == {"secretKeyRef": {"name": "keys", "key": "apiKey"}}


def test_only_the_head_sees_the_keys_of_the_judge() -> None:
    secret = {**PROVIDER, "keys": [{"secret": "first-key"}, {"env": "MINE"}]}
    manifest = job(a_run(spec__topology=SPLIT, spec__judge={**JUDGE, "providers": [secret]}))
    assert variables(manifest, "head")["SEATRIAL_JUDGE_KEY_FIRST_KEY"] == {
        "secretKeyRef": {"name": "first-key", "key": "apiKey"}
    }
    assert not [name for name in ("rollout", "train", "agents") if "first-key" in str(group(manifest, name))]


def test_agents_hold_no_keys_of_s3_while_trials_run() -> None:
    s3 = {"s3": {"uri": "s3://runs", "secret": "keys"}}
    key = {"secretKeyRef": {"name": "keys", "key": "accessKeyId"}}
    kept = job(a_run(spec__topology=SPLIT, spec__storage=s3))
    assert [name for name in ROLES if variables(kept, name).get("AWS_ACCESS_KEY_ID") == key] == [
        "head",
        "rollout",
        "train",
    ]
    for name in ROLES:
        (inputs,) = group(kept, name)["template"]["spec"]["initContainers"]
        assert {"name": "AWS_ACCESS_KEY_ID", "valueFrom": key} in inputs["env"]
    read = job(a_run(spec__topology=SPLIT, spec__model__source=s3))
    assert [name for name in ROLES if "AWS_ACCESS_KEY_ID" in variables(read, name)] == ["head"], "it brings it for all"
    assert "initContainers" not in group(read, "agents")["template"]["spec"]


def test_what_brings_inputs_has_what_the_user_gives_to_ray() -> None:
    template = {"spec": {"containers": [{"name": "ray", "env": [{"name": "HF_TOKEN", "value": "x"}]}]}}
    run = a_run(
        spec__topology={**SPLIT, "rollout": {"podTemplate": template}}, spec__storage={"s3": {"uri": "s3://runs"}}
    )
    (inputs,) = group(job(run), "rollout")["template"]["spec"]["initContainers"]
    assert {"name": "HF_TOKEN", "value": "x"} in inputs["env"]
    assert not [one["name"] for one in inputs["env"] if one["name"].startswith("SEATRIAL_DRIVER")]


def test_every_pod_sees_run_storage_and_the_claims_of_sources() -> None:
    run = a_run(spec__topology=SPLIT, spec__model__source={"pvc": {"claim": "models"}})
    for name in ("head", "rollout", "train", "agents"):
        mounts = {mount["mountPath"]: mount for mount in container(job(run), name)["volumeMounts"]}
        assert mounts["/seatrial/storage"]["name"] == "seatrial-storage"
        assert mounts["/seatrial/pvc/models"]["readOnly"]


def test_the_claim_of_run_storage_is_one_volume_also_where_a_source_names_it() -> None:
    run = a_run(spec__model__source={"pvc": {"claim": "runs"}})
    volumes = group(job(run), "rollout")["template"]["spec"]["volumes"]
    assert [volume["name"] for volume in volumes if "persistentVolumeClaim" in volume] == ["seatrial-storage"]


def test_the_operator_s_storage_serves_a_run_that_names_none() -> None:
    config = OperatorConfig.model_validate({"storage": {"pvc": {"claim": "shared", "path": "all"}}})
    manifest = job(a_run(spec__storage={}), config=config)
    assert "/seatrial/storage/all/run-5ea7a1a1" in manifest["spec"]["entrypoint"]
    assert "'claimName': 'shared'" in str(manifest)


def test_kueue_s_job_starts_suspended_and_no_other_does() -> None:
    queued = job(a_run(spec__topology={"scheduling": {"kueue": {"queue": "q"}}}))
    assert queued["spec"]["suspend"] is True
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    volcano = job(a_run(spec__topology={"scheduling": {"volcano": {"queue": "q"}}}))
    assert "suspend" not in volcano["spec"]
    assert volcano["metadata"]["labels"]["volcano.sh/queue-name"] == "q"


def test_ray_s_authentication_is_switched_off_or_left_to_kuberay() -> None:
    assert variables(job(a_run()), "agents")["RAY_AUTH_MODE"] == "disabled"
    guarded = job(a_run(), config=OperatorConfig(ray_auth="token"))
    assert "RAY_AUTH_MODE" not in variables(guarded, "agents")
    assert guarded["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize(
    ("resources", "requests", "limits"),
    [
        ({}, {"cpu": "1", "memory": "4Gi"}, {"nvidia.com/gpu": "8"}),
        ({"requests": {"cpu": "9"}}, {"cpu": "9"}, {"nvidia.com/gpu": "8"}),
        ({"limits": {"amd.com/gpu": "8"}}, {"cpu": "1", "memory": "4Gi"}, {"amd.com/gpu": "8"}),
        ({"claims": [{"name": "gpus"}]}, {"cpu": "1", "memory": "4Gi"}, None),
    ],
)
def test_gpus_follow_the_topology_unless_the_role_brings_its_own(
    resources: dict[str, Any], requests: dict[str, str], limits: dict[str, str] | None
) -> None:
    made = container(job(a_run(spec__topology={"rollout": {"resources": resources}})), "rollout")["resources"]
    assert made["requests"] == requests
    assert made.get("limits") == limits


def test_the_ray_container_comes_first_whatever_a_template_adds() -> None:
    side = {"spec": {"containers": [{"name": "side", "image": "x"}]}}
    template = group(job(a_run(spec__topology={"agents": {"podTemplate": side}})), "agents")["template"]
    assert [item["name"] for item in template["spec"]["containers"]] == ["ray", "side"]


def test_a_secret_holds_the_request_as_the_driver_reads_it() -> None:
    run = a_run(spec__topology=SPLIT, spec__guards={"maxLogprobDiff": None}, status__phase="Running")
    request = driver_request(run, UID, segment(run, 1), CONFIG, resume=True)
    secret = request_secret(run, UID, segment(run, 1), 2, request, "t0ken")
    assert secret["metadata"]["name"] == "run-s1-a2"
    assert b64decode(secret["data"]["token"]) == b"t0ken"
    read = DriverRequest.model_validate_json(b64decode(secret["data"]["run.json"]))
    assert read == request
    assert read.run.spec.guards.max_logprob_diff is None, "a guard that is switched off stays so"
    assert read.run.status is None
    assert read.stages == ["overfit", "train"]
    assert str(read.base_dir) == "/seatrial/storage/team"
    assert read.pods == {"rollout": 4, "train": 2, "agents": 1}


def test_a_pool_is_valid_and_goes_with_its_run() -> None:
    run = a_run(metadata__namespace="team")
    manifest = rollout_pool(run, UID)
    (owner,) = manifest["metadata"].pop("ownerReferences")
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "RLRun",
        UID,
        True,
        False,
    )
    pool = RolloutPool.model_validate(manifest)
    assert (pool.metadata.namespace, pool.spec.run, pool.spec.engines) == ("team", "run", run.spec.rollout.engines)


def of_role(role: str, template: dict[str, Any]) -> RLRun:
    return a_run(spec__topology={**SPLIT, role: {"podTemplate": template}})


def ray(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "ray", **fields}]}}


@pytest.mark.parametrize(
    ("role", "template", "path"),
    [
        ("head", {"metadata": {"name": "mine"}}, "metadata.name"),
        ("head", {"metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}}}, "metadata.annotations"),
        ("head", {"metadata": {"labels": {"$patch": "replace", "a": "b"}}}, "metadata.labels"),
        ("head", {"spec": {"$patch": "delete"}}, "spec.containers"),
        ("head", {"spec": {"$retainKeys": ["containers"], "containers": []}}, "spec"),
        ("head", {"spec": {"containers": [{"name": "ray", "$patch": "delete"}]}}, "spec.containers"),
        ("head", {"spec": {"containers": [{"name": "x", "$patch": "replace"}]}}, "spec.containers"),
        ("head", ray(**{"$retainKeys": ["name"]}), "spec.containers[ray]"),
        ("head", ray(ports=[{"containerPort": 8090, "name": "x"}]), "spec.containers[ray].ports"),
        ("head", ray(ports=[{"containerPort": 9000, "name": "driver"}]), "spec.containers[ray].ports"),
        ("head", ray(ports=None), "spec.containers[ray].ports"),
        ("agents", ray(env=[{"name": "SEATRIAL_DRIVER_HOST", "value": "x"}]), "spec.containers[ray].env"),
        ("agents", ray(env=[{"name": "RAY_AUTH_MODE", "$patch": "delete"}]), "spec.containers[ray].env"),
        ("agents", ray(env=[{"name": "RAY_ADDRESS", "value": "x"}]), "spec.containers[ray].env"),
        ("agents", ray(env={"A": "b"}), "spec.containers[ray].env"),
        (
            "train",
            ray(volumeMounts=[{"mountPath": "/seatrial/storage", "name": "x"}]),
            "spec.containers[ray].volumeMounts",
        ),
        ("train", ray(volumeMounts=[{"mountPath": "/seatrial", "name": "x"}]), "spec.containers[ray].volumeMounts"),
        ("train", {"spec": {"volumes": [{"name": "seatrial-storage", "emptyDir": {}}]}}, "spec.volumes"),
        ("train", {"spec": {"volumes": [{"name": "seatrial-mine", "emptyDir": {}}]}}, "spec.volumes"),
        ("train", {"spec": {"volumes": {}}}, "spec.volumes"),
        ("rollout", {"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0]"),
    ],
)
def test_a_template_that_changes_what_is_ours_is_a_problem_with_its_field(
    role: str, template: dict[str, Any], path: str
) -> None:
    found = list(template_problems(of_role(role, template), CONFIG))
    assert found
    assert found[0].path.startswith(f"spec.topology.{role}.podTemplate.{path}"), found
    assert any(word in found[0].message for word in (";", ","))


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}}},
        {"spec": {"serviceAccountName": "s3-reader", "hostNetwork": True, "terminationGracePeriodSeconds": 5}},
        {"spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Ti"}}]}},
        ray(env=[{"name": "HOME", "value": "/home/ray"}, {"name": "NCCL_DEBUG", "value": "INFO"}]),
        ray(volumeMounts=[{"mountPath": "/dev/infiniband", "name": "ib"}], livenessProbe=None),
        ray(securityContext={"privileged": True}),
    ],
)
def test_a_template_may_change_the_rest(template: dict[str, Any]) -> None:
    run = of_role("rollout", template)
    assert problems(run, CONFIG) == []


def test_problems_are_those_of_the_spec_and_of_its_templates() -> None:
    run = a_run(
        spec__storage={},
        spec__topology={"agents": {"podTemplate": {"metadata": {"name": "x"}}}},
    )
    assert [problem.path for problem in problems(run, CONFIG)] == [
        "spec.storage",
        "spec.topology.agents.podTemplate.metadata.name",
    ]


def test_a_rehearsal_has_a_template_for_every_role() -> None:
    run = a_run(spec__topology=SPLIT)
    made = rehearsal(run, UID, CONFIG)
    assert list(made) == [Role.HEAD, Role.ROLLOUT, Role.TRAIN, Role.AGENTS]
    assert made[Role.TRAIN]["template"] == group(job(run), "train")["template"] | {
        "metadata": made[Role.TRAIN]["template"]["metadata"]
    }


def test_the_api_server_s_words_are_told_with_the_run_s_own_fields() -> None:
    run = a_run(spec__topology=SPLIT)
    assert blame_ray_job(
        ".spec.rayClusterSpec.workerGroupSpecs[2].template.spec.tolerationz: field not declared in schema",
        worker_roles(run),
    ) == ("spec.topology.agents.podTemplate.spec.tolerationz: field not declared in schema")
    assert blame_ray_job(
        "spec.rayClusterSpec.headGroupSpec.template.spec.x: Invalid value", worker_roles(run)
    ).startswith("spec.topology.head.podTemplate.spec.x: ")
    assert blame_pod_template("template.spec.volumes[0].name: Required value", template_path(Role.TRAIN)) == (
        "spec.topology.train.podTemplate.spec.volumes[0].name: Required value"
    )
    assert blame_pod_template(
        'template.spec.containers[0].resources.limits[a b]: Invalid value: "a b"', template_path(Role.TRAIN)
    ) == ('spec.topology.train.resources.limits[a b]: Invalid value: "a b"')
