"""Ceilings, node split and cost."""

import pytest

from seatrial_api.ceilings import (
    Usage,
    algorithmic_ceiling,
    dollars,
    kv_bytes_per_token,
    split_nodes,
    systems_ceiling,
)
from seatrial_api.demand import TaskCounts, TrialShape, concurrency_of, trials_of
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.operations import CostSpec
from seatrial_api.spec.topology import TopologySpec
from tests.manifests import run_manifest


def test_the_published_recipe_admits_1024_trials() -> None:
    assert algorithmic_ceiling(max_staleness_steps=3, batch_size=16, group_size=16) == 1024


def test_the_systems_ceiling_is_kv_tokens_over_mean_tokens_and_at_least_one() -> None:
    assert systems_ceiling(1_000_000, 40_000) == 25
    assert systems_ceiling(10, 40_000) == 1


def test_a_token_takes_keys_and_values_of_every_layer() -> None:
    assert kv_bytes_per_token(num_layers=28, num_kv_heads=8, head_dim=128, bytes_per_value=2) == 114_688


@pytest.mark.parametrize(
    ("nodes", "ratio", "inference", "train", "total"),
    [
        (14, "10:4", 10, 4, 14),
        (20, "12:8", 12, 8, 20),
        (20, "3:2", 12, 8, 20),
        (6, "4:2", 4, 2, 6),
        (1, "4:2", 1, 1, 1),
    ],
)
def test_nodes_are_split_by_the_ratio_and_one_is_shared(
    nodes: int, ratio: str, inference: int, train: int, total: int
) -> None:
    split = split_nodes(TopologySpec(nodes=nodes, inference_train_ratio=ratio))
    assert (split.inference, split.train, split.total, split.is_shared) == (inference, train, total, nodes == 1)


def test_cost_adds_nodes_and_every_tier_of_tokens() -> None:
    prices = CostSpec(
        node_hour=24, cached_prompt_million_tokens=0.1, prompt_million_tokens=1, completion_million_tokens=4
    )
    usage = Usage(node_hours=2, cached_prompt_tokens=1e6, prompt_tokens=2e6, completion_tokens=5e5)
    assert dollars(usage, prices) == pytest.approx(48 + 0.1 + 2 + 2)
    assert dollars(usage + usage, prices) == pytest.approx(2 * dollars(usage, prices))
    assert dollars(usage * 3, prices) == pytest.approx(3 * dollars(usage, prices))


def test_a_trial_computes_each_prompt_token_once_and_finds_the_rest_in_the_cache() -> None:
    usage = TrialShape(seconds=1, tokens=1000, sampled_fraction=0.4, turns=5).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (600, 400)
    # Turns 2 to 5 find 1/5, 2/5, 3/5 and 4/5 of the trajectory in the cache.
    assert usage.cached_prompt_tokens == pytest.approx(2000)


SPEC = RLRun.model_validate(run_manifest()).spec
TASKS = TaskCounts(train=100, validation=10, held_out=50, regression=7)


@pytest.mark.parametrize(
    ("stage", "trials"),
    [
        (0, 100 + 128 * 16),  # every task once, then whole groups of up to 128 tasks
        (1, 57),
        (2, 10 * 32 * 8),
        (3, 20 * 16 * 16 + 1 * 10),  # 20 batches and one validation
        (4, 57),
    ],
)
def test_trials_of_a_stage_are_counted(stage: int, trials: int) -> None:
    assert trials_of(SPEC.stages[stage], SPEC, TASKS) == trials


def test_trials_are_not_known_while_the_set_s_size_is_not() -> None:
    unknown = TaskCounts(train=None, validation=None, held_out=None, regression=0)
    assert [trials_of(stage, SPEC, unknown) for stage in SPEC.stages] == [None, None, 2560, None, None]


def test_trials_in_flight_are_bounded_by_engines_memory_and_staleness() -> None:
    train, evaluate = SPEC.stages[3], SPEC.stages[1]
    assert concurrency_of(train, SPEC, systems=None) == 256
    assert concurrency_of(train, SPEC, systems=100) == 100
    many = RLRun.model_validate(run_manifest(spec__rollout__engines__maxNumSeqs=5000)).spec
    assert concurrency_of(train, many, systems=None) == 1024
    assert concurrency_of(evaluate, many, systems=None) == 5000
    fixed = RLRun.model_validate(run_manifest(spec__async__concurrency=7)).spec
    assert concurrency_of(train, fixed, systems=100) == 7
