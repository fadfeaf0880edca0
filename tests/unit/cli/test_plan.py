"""Plans: objects, ceilings and cost before anything is spent."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seatrial.plan import Plan, make_plan
from seatrial.plan_view import render
from seatrial_api.demand import TrialShape
from seatrial_api.rlrun import RLRun
from tests.broken_rules import JUDGE
from tests.manifests import run_manifest


def plan(tmp_path: Path, launcher: Any = "operator", **changes: Any) -> Plan:
    run = RLRun.model_validate(run_manifest(**changes))
    return make_plan(run, tmp_path, launcher, shape=TrialShape(seconds=36, tokens=1000))


def shown(planned: Plan) -> str:
    output = StringIO()
    Console(file=output, width=160).print(render(planned))
    return output.getvalue()


LIMITS: dict[str, Any] = {
    "spec__data__train__limit": 100,
    "spec__data__validation__limit": 10,
    "spec__data__heldOut__limit": 50,
    "spec__cost": {"nodeHour": 10, "completionMillionTokens": 2},
    "spec__async__concurrency": 256,
    "spec__topology": {"nodes": 6, "inferenceTrainRatio": "4:2", "agents": {"trialsPerHost": 256}},
}

ON_CPUS: dict[str, Any] = {"spec__topology": {"gpusPerNode": 0}, "spec__async__weightSync": {"method": "gloo"}}


def test_a_cluster_gets_a_pool_and_a_job_for_each_segment_with_its_nodes(tmp_path: Path) -> None:
    objects = [(item.kind, item.name, item.when) for item in plan(tmp_path, **LIMITS).objects]
    assert objects == [
        ("RolloutPool", "run", "whole run"),
        ("Secret", "run-s0-a0", "preflight, before"),
        ("RayJob", "run-s0-a0", "preflight, before"),
        ("Secret", "run-s1-a0", "overfit, train"),
        ("RayJob", "run-s1-a0", "overfit, train"),
        ("Secret", "run-s2-a0", "after"),
        ("RayJob", "run-s2-a0", "after"),
    ]


def test_a_job_s_pods_are_those_that_its_manifest_asks_for(tmp_path: Path) -> None:
    jobs = [item.detail for item in plan(tmp_path, **LIMITS).objects if item.kind == "RayJob"]
    assert jobs == [
        "head 1; rollout 4 x 8 GPUs; agents 1",
        "head 1; rollout 4 x 8 GPUs; train 2 x 8 GPUs; agents 1",
        "head 1; rollout 4 x 8 GPUs; agents 1",
    ]


def test_a_pod_template_that_cannot_be_merged_is_refused_by_a_plan_too(tmp_path: Path) -> None:
    topology = {"agents": {"podTemplate": {"spec": {"volumes": [{"emptyDir": {}}]}}}}
    planned = plan(tmp_path, spec__topology=topology)
    assert "spec.topology.agents.podTemplate.spec.volumes[0]" in [refusal.path for refusal in planned.refusals]
    assert "not with this podTemplate" in shown(planned)


def test_storage_that_the_operator_has_to_bring_is_noted(tmp_path: Path) -> None:
    assert any("takes the operator's default" in note for note in plan(tmp_path).notes)
    assert not any("default" in note for note in plan(tmp_path, spec__storage={"pvc": {"claim": "c"}}).notes)


def test_stages_without_training_hold_inference_nodes_only(tmp_path: Path) -> None:
    assert [stage.nodes for stage in plan(tmp_path, **LIMITS).stages] == [4, 4, 6, 6, 4]


def test_holding_the_run_costs_all_nodes_throughout_and_is_noted(tmp_path: Path) -> None:
    topology = {**LIMITS["spec__topology"], "hold": "Run"}
    held, released = plan(tmp_path, **(LIMITS | {"spec__topology": topology})), plan(tmp_path, **LIMITS)
    assert [stage.nodes for stage in held.stages] == [6] * 5
    assert any("topology.hold Run keeps all 6 nodes" in note for note in held.notes)
    assert (held.cost_dollars or 0) > (released.cost_dollars or 0)


def test_cost_is_nodes_by_time_and_tokens_by_trial(tmp_path: Path) -> None:
    train = plan(tmp_path, **LIMITS).stages[3]
    # 20 batches of 16 x 16 and one validation of 10 tasks, 256 at once, 36 s each.
    assert train.trials == 5130
    assert train.hours == pytest.approx(5130 / 256 * 36 / 3600)
    assert train.cost_dollars == pytest.approx(6 * 10 * (train.hours or 0) + 5130 * 300 / 1e6 * 2)


def test_cost_is_not_guessed_while_a_set_s_size_is_not_known(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    assert planned.cost_dollars is None
    assert "Cost not known: of preflight, before, train, after the number of tasks" in shown(planned)


def test_without_prices_no_cost_is_told(tmp_path: Path) -> None:
    told = shown(plan(tmp_path, **(LIMITS | {"spec__cost": {}})))
    assert "Cost not told: spec.cost has no price." in told


def test_tasks_in_a_folder_here_are_counted(tmp_path: Path) -> None:
    for index in range(3):
        task = tmp_path / "held-out" / f"t{index}"
        task.mkdir(parents=True)
        (task / "task.toml").touch()
    assert plan(tmp_path).stages[1].trials == 3


def test_the_systems_ceiling_is_known_where_the_cache_has_a_size_and_the_model_lies_here(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    planned = plan(tmp_path, "local", **ON_CPUS, spec__rollout__engines={"replicas": 2, "kvCacheGib": 1.0})
    # 2 x 4 layers x 2 heads x 32 x 2 bytes = 1,024 bytes a token.
    assert planned.ceilings.kv_tokens == 2 * 2**20
    assert planned.ceilings.systems == 2097


def test_a_model_that_cannot_be_read_leaves_the_systems_ceiling_open(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("not json")
    planned = plan(tmp_path, **ON_CPUS, spec__rollout__engines={"kvCacheGib": 1.0})
    assert planned.ceilings.systems is None
    assert "known once the engines run" in shown(planned)


def test_a_local_plan_lists_processes_and_what_would_be_refused(tmp_path: Path) -> None:
    planned = plan(tmp_path, "local")
    assert [item.kind for item in planned.objects] == ["folder", "driver", "engine", "trial host", "policy"]
    assert "The local launcher would not start" in shown(planned)
    assert "spec.sandbox.provider: this machine has no pods" in shown(planned)


def test_a_local_plan_tells_of_the_judge_and_where_its_keys_are_read(tmp_path: Path) -> None:
    (judge,) = [item for item in plan(tmp_path, "local", spec__judge=JUDGE).objects if item.kind == "judge"]
    assert judge.detail == "model m; reads KEY"


def test_idle_gpus_are_noted(tmp_path: Path) -> None:
    notes = plan(tmp_path, **LIMITS).notes
    assert "31 of 32 inference GPUs would stand idle" in notes
    assert "15 of 16 training GPUs would stand idle" in notes


def test_an_engine_that_leaves_a_shared_gpu_s_trainer_no_memory_is_noted(tmp_path: Path) -> None:
    changes = {"spec__topology": {"gpusPerNode": 1}, "spec__async__weightSync": {"method": "files"}}
    assert any("0.4 is a start" in note for note in plan(tmp_path, **changes).notes)
    changes["spec__rollout__engines"] = {"gpuMemoryUtilization": 0.4}
    assert not any("0.4 is a start" in note for note in plan(tmp_path, **changes).notes)
