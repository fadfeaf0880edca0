"""Layouts and their memory as arithmetic on a model's config."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.backend import Parallelism, TrainerSpec
from seatrial_trainer.policy.sizing.activations import kept_values
from seatrial_trainer.policy.sizing.layouts import idle_share, layout_problems
from seatrial_trainer.policy.sizing.memory import GIB, LOGITS_BYTES, Load, rank_memories
from seatrial_trainer.policy.sizing.parameters import adapter_parameters, stage_parameters, whole_model
from seatrial_trainer.policy.sizing.proposals import propose
from seatrial_trainer.policy.sizing.shapes import ModelShape, model_shape
from tests.model_configs import LLAMA_8B, QWEN3_30B, QWEN3_235B, QWEN35_35B, QWEN35_397B

LOAD = Load(bytes_per_value=2, num_microbatches=16)


def trainer(ranks: int = 1, sizes: dict[str, int] | None = None, **fields: Any) -> TrainerSpec:
    tokens = fields.pop("tokens", 16_384)
    parallelism = Parallelism.model_validate(sizes or {})
    return TrainerSpec(
        backend="megatron", ranks=ranks, parallelism=parallelism, max_tokens_per_microbatch=tokens, **fields
    )


@pytest.mark.parametrize(
    ("config", "billions"),
    [(LLAMA_8B, 8.03), (QWEN3_30B, 30.53), (QWEN3_235B, 235.09), (QWEN35_35B, 34.66), (QWEN35_397B, 396.35)],
)
def test_a_model_has_as_many_parameters_as_its_name_says(config: dict[str, Any], billions: float) -> None:
    assert whole_model(model_shape(config)).total / 1e9 == pytest.approx(billions, abs=0.005)


def test_adapters_spare_gradients_and_moments_of_the_base() -> None:
    shape = model_shape(QWEN3_30B)
    (whole,), (adapted,) = (rank_memories(shape, trainer(), replace(LOAD, adapter_rank=rank)) for rank in (0, 32))
    trained = adapter_parameters(shape, Parallelism(), 0, rank=32)
    assert adapted.weights == whole.weights + 2 * trained
    assert (adapted.gradients, adapted.optimizer) == (4 * trained, 12 * trained)


@pytest.mark.parametrize("name", ["qwen35-35b-a3b", "qwen35-397b-a17b"])
def test_the_examples_configs_are_those_that_the_layouts_are_tested_with(name: str) -> None:
    folder = Path(__file__).parents[3] / "examples/apex/models" / name
    expected = {"qwen35-35b-a3b": QWEN35_35B, "qwen35-397b-a17b": QWEN35_397B}[name]
    assert json.loads((folder / "config.json").read_text()) == expected


def test_a_layer_s_parameters_follow_by_hand() -> None:
    config = {
        "model_type": "qwen2",
        "hidden_size": 8,
        "vocab_size": 10,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "tie_word_embeddings": True,
    }
    attention = 8 * 8 + 2 * (8 * 4) + 8 * 8 + (8 + 4 + 4)
    expected = 10 * 8 + attention + 3 * 8 * 16 + 3 * 8
    assert whole_model(model_shape(config)).total == expected


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    expert=st.sampled_from([1, 2, 8]),
    config=st.sampled_from([QWEN3_30B, QWEN35_35B]),
)
def test_what_all_ranks_hold_is_the_model_and_what_they_hold_alike(
    tensor: int, pipeline: int, expert: int, config: dict[str, Any]
) -> None:
    shape = model_shape(config)
    sizes = Parallelism(tensor=tensor, pipeline=pipeline, expert=expert)
    stages = [stage_parameters(shape, sizes, stage) for stage in range(pipeline)]
    assert sum(stage.experts for stage in stages) * expert == whole_model(shape).experts
    copies = sum(stage.dense for stage in stages) * tensor - whole_model(shape).dense
    assert 0 <= copies <= (tensor - 1) * 0.02 * whole_model(shape).dense, "norms, routers, and nothing else"


@pytest.mark.parametrize(
    ("config", "sizes", "field", "says"),
    [
        (QWEN3_30B, {"tensor": 3}, "tensor", "3 does not divide the model's 32 attention heads"),
        (QWEN3_30B, {"pipeline": 5}, "pipeline", "5 does not divide the model's 48 layers"),
        (QWEN3_30B, {"expert": 3}, "expert", "3 does not divide the model's 128 experts"),
        (QWEN3_30B, {"expertTensor": 5}, "expertTensor", "5 does not divide the model's 768 expert width"),
        (LLAMA_8B, {"expert": 2}, "expert", "2 does not divide the model's 1 experts"),
        (LLAMA_8B, {"tensor": 5}, "tensor", "neither divides the model's 8 key-value heads nor is a multiple"),
        (QWEN3_30B, {"pipeline": 4, "virtualPipeline": 5}, "virtualPipeline", "the model's 12 layers of a stage"),
        (QWEN35_35B, {"tensor": 8, "context": 4}, "context", "4 x 8 tensor ranks do not divide the model's 16"),
        (QWEN35_35B, {"tensor": 32}, "tensor", "32 does not divide the model's 16 linear-attention key heads"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_told_by_its_field(
    config: dict[str, Any], sizes: dict[str, int], field: str, says: str
) -> None:
    wanted = Parallelism.model_validate(sizes)
    ranks = wanted.tensor * wanted.pipeline * wanted.context * wanted.expert * wanted.expert_tensor
    found = {str(problem) for problem in layout_problems(model_shape(config), trainer(ranks, sizes))}
    assert any(says in text and text.startswith(f"spec.trainer.parallelism.{field}: ") for text in found)


def test_key_heads_may_be_fewer_than_tensor_ranks() -> None:
    assert not layout_problems(model_shape(QWEN35_35B), trainer(8, {"tensor": 8}))


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks", "expected"),
    [(1, 8, 1, 0), (4, 12, 1, 0.2), (4, 12, 3, 3 / 39), (2, 1, 1, 0.5)],
)
def test_a_pipeline_waits_while_it_fills_and_drains(
    stages: int, microbatches: int, chunks: int, expected: float
) -> None:
    assert idle_share(stages, microbatches, chunks) == pytest.approx(expected)


def test_the_optimiser_is_cut_over_replicas_and_gradients_are_not() -> None:
    shape = model_shape(LLAMA_8B)
    (one,), (four,) = rank_memories(shape, trainer(), LOAD), rank_memories(shape, trainer(4), LOAD)
    count = whole_model(shape).total
    assert (one.weights, one.gradients, one.optimizer) == (2 * count, 4 * count, 12 * count)
    assert (four.weights, four.gradients, four.optimizer) == (2 * count, 4 * count, 3 * count)


def test_experts_are_cut_over_fewer_replicas_than_the_rest() -> None:
    shape = model_shape(QWEN3_30B)
    (memory,) = rank_memories(shape, trainer(8, {"tensor": 2, "expert": 4}), LOAD)
    assert memory.optimizer == pytest.approx(12 * (memory.parameters.dense / 4 + memory.parameters.experts / 2), abs=99)


def test_thirty_two_bit_weights_are_their_own_masters() -> None:
    (memory,) = rank_memories(model_shape(LLAMA_8B), trainer(), Load(4, 1))
    assert memory.optimizer == 8 * memory.parameters.total


def test_an_offloaded_optimiser_leaves_its_masters_and_needs_the_host() -> None:
    (memory,) = rank_memories(model_shape(LLAMA_8B), trainer(offload_optimizer=True), LOAD)
    assert (memory.optimizer, memory.host) == (4 * memory.parameters.total, 16 * memory.parameters.total)


def test_a_stage_keeps_the_micro_batches_that_are_on_their_way_through_later_ones() -> None:
    shape = model_shape(QWEN3_30B)
    stages = rank_memories(shape, trainer(4, {"pipeline": 4}), LOAD)
    assert [stage.activations for stage in stages] == [n * stages[3].activations for n in (4, 3, 2, 1)]
    short = rank_memories(shape, trainer(4, {"pipeline": 4}), replace(LOAD, num_microbatches=2))
    assert [stage.activations for stage in short] == [n * stages[3].activations for n in (2, 2, 2, 1)]
    assert [stage.logits > LOGITS_BYTES for stage in stages] == [False, False, False, True]


def test_interleaved_stages_keep_more_chunks_of_fewer_layers() -> None:
    shape = model_shape(QWEN3_30B)
    (last,) = rank_memories(shape, trainer(4, {"pipeline": 4}), LOAD)[3:]
    stages = rank_memories(shape, trainer(4, {"pipeline": 4, "virtualPipeline": 2}), LOAD)
    # of chunks of half a stage: 4 before all, twice what is behind a stage, and the one that is computed
    assert [stage.activations for stage in stages] == [n * last.activations // 2 for n in (11, 9, 7, 5)]
    assert [stage.num_layers for stage in stages] == [12] * 4


def test_full_recomputation_keeps_the_input_of_each_layer_alone() -> None:
    shape = model_shape(LLAMA_8B)
    (memory,) = rank_memories(shape, trainer(recompute="Full", tokens=1000), LOAD)
    assert memory.activations == 32 * 4096 * 1000 * 2


def test_less_is_kept_the_more_is_computed_again_and_the_more_ranks_share() -> None:
    def kept(recompute: Any = "None", **sizes: int) -> int:
        return kept_values(model_shape(LLAMA_8B), "attention", Parallelism(**sizes), 1024, recompute)

    assert kept("Full") < kept("Selective") < kept("None")
    assert kept(tensor=4) * 4 == kept()


def test_a_dense_layer_s_activations_follow_by_hand() -> None:
    per_token = 4 * 4096 + (4096 + 2 * 1024) + 4096 + 2 * 32 + 3 * 14336
    assert kept_values(model_shape(LLAMA_8B), "attention", Parallelism(), 1, "None") == per_token


def proposal(shape: ModelShape, given: TrainerSpec, gpu_gib: float = 80) -> TrainerSpec | None:
    return propose(shape, given, LOAD, gpu_bytes=int(gpu_gib * GIB), gpus_per_node=8)


def test_a_proposal_fits_and_keeps_what_it_can() -> None:
    shape, given = model_shape(QWEN3_30B), trainer(8)
    assert max(memory.total for memory in rank_memories(shape, given, LOAD)) > 80 * GIB
    found = proposal(shape, given)
    assert found is not None
    assert (found.ranks, found.max_tokens_per_microbatch) == (8, 16_384)
    assert not layout_problems(shape, found)
    assert max(memory.total for memory in rank_memories(shape, found, LOAD)) <= 80 * GIB


def test_a_proposal_cuts_experts_before_layers() -> None:
    found = proposal(model_shape(QWEN3_30B), trainer(16, recompute="Full"))
    assert found is not None
    assert found.parallelism.expert > 1
    assert found.parallelism.pipeline == 1


def test_ranks_are_added_where_no_layout_of_those_given_fits() -> None:
    found = proposal(model_shape(QWEN35_397B), trainer(8, tokens=4096), gpu_gib=140)
    assert found is not None
    assert found.ranks > 8


def test_nothing_is_proposed_where_nothing_fits() -> None:
    assert proposal(model_shape(QWEN35_397B), trainer(1, tokens=4096)) is None


def test_what_something_else_forbids_is_not_proposed() -> None:
    shape = model_shape(QWEN3_30B)
    found = propose(
        shape,
        trainer(8),
        LOAD,
        gpu_bytes=80 * GIB,
        gpus_per_node=8,
        is_allowed=lambda candidate: candidate.parallelism.context == 1 and candidate.recompute == "Full",
    )
    assert found is not None
    assert (found.parallelism.context, found.recompute) == (1, "Full")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "gpt_neox"}, "model_type 'gpt_neox' are not known; known are llama"),
        ({"vocab_size": None}, "of a qwen3_moe lacks a size"),
        ({"mlp_only_layers": [0]}, "layers without experts"),
    ],
)
def test_a_config_that_cannot_be_sized_says_why(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        model_shape({**QWEN3_30B, **changes})
