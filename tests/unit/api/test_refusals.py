"""What launchers refuse: a sentence for each field that they cannot honour."""

from typing import Any

import pytest

from seatrial_api.refusals import Launcher, Refusal, refusals
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.spec.operations import StorageSpec
from tests.broken_rules import JUDGE, PROVIDER
from tests.manifests import run_manifest

LOCAL = {
    "spec__sandbox": {"provider": "local"},
    "spec__async__weightSync": {"method": "gloo"},
    "spec__topology": {"nodes": 1, "gpusPerNode": 0},
}
IN_SECRET = {**PROVIDER, "keys": [{"secret": "s"}]}
CLUSTER = LOCAL | {"spec__storage": {"pvc": {"claim": "c", "path": "team"}}}

type Case = tuple[dict[str, Any], str]


def tinker(**changes: Any) -> dict[str, Any]:
    """What the Tinker service can do, with changes."""
    source = {"spec__model__source": {"hf": {"repo": "a/b"}}, "spec__model__lora": {"alpha": 32}}
    return source | {"spec__trainer__backend": "tinker"} | changes


EVERYWHERE: list[Case] = [
    (tinker(spec__model__source={"path": "model"}), "spec.model.source"),
    (tinker(spec__model__source={"hf": {"repo": "a/b", "revision": "v1"}}), "spec.model.source.hf.revision"),
    (tinker(spec__model__lora={}), "spec.model.lora.alpha"),
    (tinker(spec__model__lora={"alpha": 32, "targetModules": ["q_proj"]}), "spec.model.lora.targetModules"),
    (tinker(spec__trainer__ranks=2), "spec.trainer.ranks"),
    (tinker(spec__trainer__offloadOptimizer=True), "spec.trainer.offloadOptimizer"),
    (tinker(spec__trainer__recompute="Full"), "spec.trainer.recompute"),
    ({"spec__checkpoint__asynchronous": True}, "spec.checkpoint.asynchronous"),
    (
        {
            "spec__stages__2": {
                "name": "a",
                "ablate": {
                    "arms": [{"name": "a", "patch": {}}, {"name": "b", "patch": {"checkpoint": {"asynchronous": True}}}]
                },
            }
        },
        "spec.stages[2].ablate.arms[1].patch",
    ),
]

ON_THIS_MACHINE: list[Case] = [
    ({"spec__storage": {"pvc": {"claim": "c"}}}, "spec.storage.pvc"),
    ({"spec__model__source": {"pvc": {"claim": "c"}}}, "spec.model.source.pvc"),
    (
        {"spec__data__regression": [{"name": "a", "tasks": {"source": {"pvc": {"claim": "c"}}}}]},
        "spec.data.regression[0].tasks.source.pvc",
    ),
    ({"spec__topology": {"nodes": 2, "gpusPerNode": 0}}, "spec.topology.nodes"),
    ({"spec__topology": {"gpusPerNode": 0, "scheduling": {"kueue": {"queue": "q"}}}}, "spec.topology.scheduling"),
    ({"spec__topology": {"gpusPerNode": 0, "rollout": {"image": "x"}}}, "spec.topology.rollout"),
    (
        {"spec__topology": {"gpusPerNode": 0, "head": {"podTemplate": {"spec": {"nodeName": "n"}}}}},
        "spec.topology.head",
    ),
    (
        {"spec__topology": {"gpusPerNode": 0, "agents": {"resources": {"limits": {"cpu": "1"}}}}},
        "spec.topology.agents.resources",
    ),
    (
        {"spec__async__weightSync": {"method": "nccl"}, "spec__topology": {"gpusPerNode": 8}},
        "spec.async.weightSync.method",
    ),
    ({"spec__suspend": True}, "spec.suspend"),
    ({"spec__ttlSecondsAfterFinished": 1}, "spec.ttlSecondsAfterFinished"),
    ({"spec__tracking": {"wandb": {"project": "p", "secret": "s"}}}, "spec.tracking.wandb.secret"),
    ({"spec__judge": {**JUDGE, "providers": [IN_SECRET]}}, "spec.judge.providers[0].keys[0].secret"),
]

ARMS = [{"name": "a", "patch": {}}, {"name": "b", "patch": {"harness": {"name": "codex"}}}]
IN_CLUSTER: list[Case] = [
    ({"spec__harness__name": "codex"}, "spec.harness.name"),
    ({"spec__stages__1__evaluate__harnesses": ["archipelago", "codex"]}, "spec.stages[1].evaluate.harnesses"),
    ({"spec__stages__2": {"name": "a", "ablate": {"arms": ARMS}}}, "spec.stages[2].ablate.arms[1].patch"),
    ({"spec__storage": {"path": "runs"}}, "spec.storage.path"),
    ({"spec__storage": {"path": "/runs"}}, "spec.storage.path"),
    ({"spec__model__source": {"path": "../../model"}}, "spec.model.source.path"),
    ({"spec__data__heldOut__source": {"path": "a/../../../b"}}, "spec.data.heldOut.source.path"),
]
IN_S3 = CLUSTER | {
    "spec__storage": {"s3": {"uri": "s3://abc", "secret": "keys"}},
    "spec__model__source": {"hf": {"repo": "a/b"}},
    **{f"spec__data__{data}__source": {"path": f"/{data}"} for data in ("train", "validation", "heldOut")},
}

KEPT_IN_S3: list[Case] = [
    ({"spec__async__weightSync": {"method": "files"}}, "spec.async.weightSync.method"),
    ({"spec__model__source": {"path": "model"}}, "spec.model.source.path"),
    ({"spec__model__source": {"s3": {"uri": "s3://abc"}}}, "spec.model.source.s3.secret"),
    ({"spec__model__source": {"s3": {"uri": "s3://abc", "secret": "others"}}}, "spec.model.source.s3.secret"),
]


def spec(base: dict[str, Any], **changes: Any) -> RLRunSpec:
    return RLRun.model_validate(run_manifest(**(base | changes))).spec


def the_refusal(wanted: RLRunSpec, launcher: Launcher, default: StorageSpec | None = None) -> Refusal:
    (refusal,) = refusals(wanted, launcher, default_storage=default)
    assert str(refusal).startswith(f"{refusal.path}: ")
    assert "; " in refusal.message, "what is wrong; the way out"
    return refusal


def test_a_run_made_for_a_launcher_is_not_refused() -> None:
    assert refusals(spec(LOCAL)) == []
    assert refusals(spec(CLUSTER), "operator", default_storage=StorageSpec()) == []


@pytest.mark.parametrize(("changes", "path"), EVERYWHERE)
def test_what_is_not_built_yet_is_refused_by_every_launcher(changes: dict[str, Any], path: str) -> None:
    assert the_refusal(spec(LOCAL, **changes), "local").path == path
    assert the_refusal(spec(CLUSTER, **changes), "operator").path.startswith(path)


@pytest.mark.parametrize(("changes", "path"), ON_THIS_MACHINE)
def test_what_needs_a_cluster_is_refused_on_one_machine_alone(changes: dict[str, Any], path: str) -> None:
    assert the_refusal(spec(LOCAL, **changes), "local").path == path
    assert refusals(spec(CLUSTER, **changes), "operator") == []


@pytest.mark.parametrize("harness", ["codex", "terminus-2"])
def test_agents_of_others_work_in_sandboxes_that_are_pods(harness: str) -> None:
    in_pods = CLUSTER | {"spec__sandbox": {"provider": "kubernetes", "world": "w"}}
    assert refusals(spec(in_pods, spec__harness__name=harness), "operator") == []
    assert the_refusal(spec(CLUSTER, spec__harness__name=harness), "operator").path == "spec.harness.name"


@pytest.mark.parametrize(("changes", "path"), IN_CLUSTER)
def test_what_pods_do_not_have_is_refused_in_a_cluster(changes: dict[str, Any], path: str) -> None:
    assert the_refusal(spec(CLUSTER, **changes), "operator").path == path
    assert refusals(spec(LOCAL, **changes), "local") == []


@pytest.mark.parametrize(("changes", "path"), KEPT_IN_S3)
def test_what_needs_a_volume_or_a_second_secret_is_refused_to_a_run_that_is_kept_in_s3(
    changes: dict[str, Any], path: str
) -> None:
    assert refusals(spec(IN_S3), "operator") == []
    assert the_refusal(spec(IN_S3, **changes), "operator").path == path


def test_a_run_may_be_kept_in_s3_and_read_from_it() -> None:
    s3 = {"s3": {"uri": "s3://abc"}}
    for base in (LOCAL, IN_S3 | {"spec__storage": s3}):
        wanted = spec(base, spec__storage=s3, spec__data__train__source=s3)
        assert refusals(wanted, "operator" if base is not LOCAL else "local") == []
    assert refusals(spec(IN_S3, spec__storage={}), "operator", default_storage=StorageSpec.model_validate(s3)) == []


@pytest.mark.parametrize(
    ("default", "words"),
    [
        (StorageSpec(), "the operator has no default; set storage.pvc or storage.s3"),
        (StorageSpec(path="/runs"), "the operator's default: a folder in pods"),
    ],
)
def test_a_run_without_storage_of_its_own_needs_a_default_that_works(default: StorageSpec, words: str) -> None:
    refusal = the_refusal(spec(LOCAL), "operator", default)
    assert refusal.path == "spec.storage"
    assert words in refusal.message
    assert refusals(spec(LOCAL), "operator") == [], "where the default is not known, as to a plan, it is not judged"
    assert refusals(spec(LOCAL), "operator", default_storage=CLAIM) == []


CLAIM = StorageSpec.model_validate({"pvc": {"claim": "c"}})


def test_pods_for_sandboxes_need_a_cluster_and_a_world() -> None:
    of_world = {"provider": "kubernetes", "world": "w"}
    assert refusals(spec(CLUSTER, spec__sandbox=of_world), "operator") == []
    assert the_refusal(spec(CLUSTER, spec__sandbox={}), "operator").path == "spec.sandbox.world"
    assert the_refusal(spec(LOCAL, spec__sandbox=of_world), "local").path == "spec.sandbox.provider"


def test_a_path_may_climb_within_the_volume_of_run_storage_but_not_out_of_it() -> None:
    climbing = spec(LOCAL, spec__model__source={"path": "../model"})
    assert the_refusal(climbing, "operator", CLAIM).path == "spec.model.source.path"
    assert refusals(spec(CLUSTER, spec__model__source={"path": "../model"}), "operator") == []
    assert refusals(spec(CLUSTER, spec__model__source={"path": "/models/of-the-image"}), "operator") == []
