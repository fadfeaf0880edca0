"""The manifests in `examples/` are valid, and plan as their recipes say."""

from pathlib import Path

import pytest

from seatrial.manifest import load_run, read_manifest
from seatrial.plan import make_plan
from seatrial.plan_layout import LayoutInputs
from seatrial_api.refusals import refusals
from seatrial_api.spec.topology import Resources

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
APEX = EXAMPLES / "apex"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("**/*.yaml")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_has_no_problem(path: Path) -> None:
    manifest = read_manifest(path)
    assert manifest.problems == ()
    assert manifest.objects or path.name == "volume.yaml"


@pytest.mark.parametrize(
    ("name", "gpu_gib", "nodes", "engines", "ranks", "concurrency"),
    [("qwen35-35b-a3b", 80, (10, 4), 10, 32, 550), ("qwen35-397b-a17b", 141, (12, 8), 12, 64, 300)],
)
def test_a_published_recipe_plans_with_its_split_and_ceilings(
    name: str, gpu_gib: float, nodes: tuple[int, int], engines: int, ranks: int, concurrency: int
) -> None:
    run = load_run(APEX / f"{name}.yaml")
    planned = make_plan(run, APEX, "operator", layout_inputs=LayoutInputs(APEX / "models" / name, gpu_gib))
    assert (planned.split.inference, planned.split.train) == nodes
    assert (run.spec.rollout.engines.replicas, run.spec.trainer.ranks) == (engines, ranks)
    assert planned.ceilings.algorithmic == 1024
    assert planned.ceilings.configured == concurrency
    assert planned.layout is not None
    assert planned.layout.gpu_bytes is not None
    assert max(memory.total for memory in planned.layout.memories) < 0.9 * planned.layout.gpu_bytes
    assert planned.notes == ()
    assert planned.cost_dollars is not None
    assert [len(segment.stages) for segment in planned.segments] == [2, 2, 1]
    assert planned.refusals == ()
    assert refusals(run.spec, launcher="local")


def test_the_single_gpu_example_runs_on_this_launcher_without_nccl() -> None:
    run = load_run(EXAMPLES / "single-gpu" / "run.yaml")
    assert refusals(run.spec, launcher="local") == []
    assert run.spec.async_.weight_sync.method == "files"
    planned = make_plan(run, EXAMPLES / "single-gpu", "local")
    assert planned.split.is_shared
    assert planned.notes == ()


def test_the_quickstart_in_a_cluster_differs_by_its_pods_its_sandboxes_and_its_storage_alone() -> None:
    local, cluster = (load_run(EXAMPLES / "quickstart" / name) for name in ("run.yaml", "cluster.yaml"))
    assert refusals(cluster.spec, launcher="operator") == []
    alike = ("storage", "topology", "sandbox")
    differing = {name: getattr(local.spec, name) for name in alike}
    times = ("setup_timeout_seconds", "wall_timeout_seconds")  # a pod takes longer to come than a process
    kept = {name: getattr(local.spec.harness.limits, name) for name in times}
    limits = cluster.spec.harness.limits.model_copy(update=kept)
    differing["harness"] = cluster.spec.harness.model_copy(update={"limits": limits})
    differing["rollout"] = cluster.spec.rollout.model_copy(update={"sandboxes": []})
    assert cluster.spec.model_copy(update=differing) == local.spec
    pods = {name: getattr(local.spec.topology, name) for name in ("head", "rollout")}
    agents = cluster.spec.topology.agents.model_copy(update={"resources": Resources()})
    assert cluster.spec.topology.model_copy(update={**pods, "agents": agents}) == local.spec.topology
