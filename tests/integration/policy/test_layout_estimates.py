"""What plans say of ranks, against models that megatron-core builds for them without memory."""

from typing import Any

import pytest
import torch
import transformers

from seatrial_api.spec.backend import Parallelism, TrainerSpec
from seatrial_trainer.policy.sizing.memory import Load, RankMemory, rank_memories
from seatrial_trainer.policy.sizing.parameters import adapter_parameters
from seatrial_trainer.policy.sizing.shapes import model_shape
from tests.megatron_meta import Built, Place, build_all
from tests.model_configs import QWEN3_30B, QWEN3_235B, QWEN35_35B, QWEN35_397B

pytestmark = pytest.mark.timeout(600)

PADDING = 1e-3
"""Share of a gradient buffer that its alignment adds; weights are counted exactly."""


def trainer(ranks: int, **sizes: int) -> TrainerSpec:
    parallelism = Parallelism.model_validate(sizes)
    return TrainerSpec(backend="megatron", ranks=ranks, parallelism=parallelism, recompute="Full")


CASES: dict[str, tuple[dict[str, Any], TrainerSpec, dict[int, int]]] = {
    # by rank to look at: its pipeline stage
    "Qwen3-30B-A3B": (QWEN3_30B, trainer(32, tensor=4, pipeline=2, virtualPipeline=3, expert=8), {0: 0, 17: 1}),
    "Qwen3-235B-A22B": (QWEN3_235B, trainer(64, tensor=4, pipeline=2, expert=16), {63: 1}),
    "Qwen3.5-35B-A3B as published": (QWEN35_35B, trainer(32, tensor=8, expert=8), {0: 0}),
    # The published layout has 2 context ranks for 2 of the 4 replicas: the same shares of everything.
    "Qwen3.5-397B-A17B": (QWEN35_397B, trainer(64, tensor=4, pipeline=4, expert=16), {0: 0, 20: 1, 63: 3}),
}


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, int], Built]:
    places = {
        (name, rank): Place(config, settings, rank)
        for name, (config, settings, ranks) in CASES.items()
        for rank in ranks
    }
    return dict(zip(places, build_all(list(places.values())), strict=True))


@pytest.mark.parametrize(("name", "rank"), [(name, rank) for name, (_, _, ranks) in CASES.items() for rank in ranks])
def test_a_rank_holds_what_the_plan_says(name: str, rank: int, built: dict[tuple[str, int], Built]) -> None:
    config, settings, stages = CASES[name]
    found, planned = built[name, rank], memory(config, settings, stages[rank])
    assert (found.dense, found.experts) == (planned.parameters.dense, planned.parameters.experts)
    assert found.gradients * 4 == pytest.approx(planned.gradients, rel=PADDING)
    assert found.optimizer * 12 == pytest.approx(planned.optimizer, rel=PADDING)


def memory(config: dict[str, Any], settings: TrainerSpec, stage: int) -> RankMemory:
    return rank_memories(model_shape(config), settings, Load(bytes_per_value=2, num_microbatches=1))[stage]


def test_adapters_are_as_many_as_the_model_s_linear_layers_ask_for() -> None:
    text = transformers.AutoConfig.for_model(**QWEN35_35B).get_text_config()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(text)
    linear = {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    left_out = ("lm_head", "shared_expert_gate")
    ends = sum(one.in_features + one.out_features for name, one in linear.items() if not name.endswith(left_out))
    shape = model_shape(QWEN35_35B)
    assert adapter_parameters(shape, Parallelism(tensor=2), 0, rank=16) == 16 * ends
    assert sum(adapter_parameters(shape, Parallelism(pipeline=2), stage, rank=16) for stage in (0, 1)) == 16 * ends
