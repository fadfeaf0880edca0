"""Qwen3.5-MoE on megatron-core, on two ranks, against transformers: probabilities, gradients, weights, checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import VOCABULARY, make_sequences, make_setup
from tests.megatron_ranks import NUM_RANKS, Case, Seen, flat, look, run

pytestmark = pytest.mark.timeout(600)

LAYOUTS = {
    "alone": ("text", {}),
    "tensor": ("text", {"tensor": 2}),
    "pipeline": ("vision", {"pipeline": 2}),
    "experts": ("vision", {"expert": 2}),
    "key-on-two-ranks": ("vision", {"tensor": 2}),
    "context": ("text", {"context": 2}),
}
"""By name: model and sizes; where there are none, each of two replicas is whole."""

BIG_VOCABULARY = 4096
WIDE = "big-vocabulary"

RESHARDED = {"pipeline-from-tensor": ("tensor", "text", {"pipeline": 2})}

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "max_position_embeddings": 256,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
}
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "patch_size": 4,
}


def setup(**trainer: Any) -> PolicySetup:
    """With an optimiser whose steps are nearly its gradients, so that equal weights mean equal gradients."""
    return replace(make_setup(**trainer), optimizer=OptimizerSpec(learning_rate=1e-2, epsilon=1e-2))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of text alone, and one as it is published: with a vision tower, and a layer's experts in one weight."""
    import transformers  # noqa: PLC0415  heavy

    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    text = transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**TEXT))
    with torch.no_grad():
        for name, parameter in text.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.1 * torch.randn_like(parameter))  # untrained they hide what is added to them
    text.save_pretrained(folder / "text")
    both = transformers.Qwen3_5MoeConfig(text_config=TEXT | {"num_key_value_heads": 1}, vision_config=VISION)
    transformers.Qwen3_5MoeForConditionalGeneration(both).save_pretrained(folder / "as-saved")
    stack_experts(folder / "as-saved", folder / "vision")
    wide = transformers.Qwen3_5MoeTextConfig(**TEXT | {"vocab_size": BIG_VOCABULARY})
    transformers.Qwen3_5MoeForCausalLM(wide).save_pretrained(folder / WIDE)
    return {name: folder / name for name in ("text", "vision", WIDE)}


def stack_experts(source: Path, directory: Path) -> None:
    weights = load_file(source / "model.safetensors")

    def stacked(layer: int, *projections: str) -> torch.Tensor:
        experts = [f"model.language_model.layers.{layer}.mlp.experts.{i}." for i in range(TEXT["num_experts"])]
        return torch.stack([torch.cat([weights.pop(f"{one}{p}.weight") for p in projections]) for one in experts])

    for layer in range(TEXT["num_hidden_layers"]):
        here = f"model.language_model.layers.{layer}.mlp.experts."
        weights[f"{here}gate_up_proj"] = stacked(layer, "gate_proj", "up_proj")
        weights[f"{here}down_proj"] = stacked(layer, "down_proj")
    weights["mtp.norm.weight"] = torch.randn(8)
    shutil.copytree(source, directory)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def cases(models: dict[str, Path]) -> dict[str, Case]:
    sequences = make_sequences()

    def case(name: str, model: str, sizes: dict[str, int], load: str | None = None) -> Case:
        parts = setup(backend="megatron", ranks=NUM_RANKS, parallelism=sizes, max_tokens_per_microbatch=64)
        return Case.of(name, parts, models[model], sequences, load)

    plain = {name: case(name, model, sizes) for name, (model, sizes) in LAYOUTS.items()}
    resharded = {name: case(name, model, sizes, load) for name, (load, model, sizes) in RESHARDED.items()}
    wide = replace(case(WIDE, WIDE, {"tensor": 2}), measures_width=True)
    return plain | resharded | {WIDE: wide}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def seen(cases: dict[str, Case], folder: Path) -> dict[str, Seen]:
    return run(list(cases.values()), folder)


@pytest.fixture(scope="module")
def expected(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Seen]:
    """By model: what transformers' own gives, a padded batch at a time."""
    models = {cases[name].model: cases[name] for name in LAYOUTS}
    return {
        path: look(TorchBackend(setup(), path), case, tmp_path_factory.mktemp("torch")) for path, case in models.items()
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_packed_sequences_have_the_probabilities_and_the_curve_that_they_have_alone(
    name: str, cases: dict[str, Case], seen: dict[str, Seen], expected: dict[Path, Seen]
) -> None:
    ours, theirs = seen[name], expected[cases[name].model]
    assert flat(ours.logprobs) == pytest.approx(flat(theirs.logprobs), abs=1e-5)
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_weight_gets_the_gradient_that_it_gets_from_transformers(
    name: str, cases: dict[str, Case], seen: dict[str, Seen], expected: dict[Path, Seen]
) -> None:
    ours, theirs = seen[name].weights, expected[cases[name].model].weights
    assert ours.keys() == theirs.keys()
    for weight, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[weight], rtol=1e-4, atol=1e-5, msg=lambda m, w=weight: f"{w}: {m}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_untrained_model_is_exported_as_it_was_read(name: str, cases: dict[str, Case], folder: Path) -> None:
    case = cases[name]
    exported = load_file(folder / case.untrained / "model.safetensors")
    original = load_file(case.model / "model.safetensors")
    assert exported.keys() == original.keys()
    for weight, tensor in original.items():
        assert torch.equal(exported[weight], tensor), weight


def test_the_torch_backend_exports_what_it_does_not_train_too(models: dict[str, Path], tmp_path: Path) -> None:
    TorchBackend(setup(), models["vision"]).export(tmp_path / "v0")
    exported = load_file(tmp_path / "v0" / "model.safetensors")
    original = load_file(models["vision"] / "model.safetensors")
    assert exported.keys() == original.keys()
    for weight, tensor in original.items():
        assert torch.equal(exported[weight], tensor), weight


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_of_the_hybrid_is_restored_to_the_bit(name: str, seen: dict[str, Seen]) -> None:
    first, again = seen[name].next_steps
    assert first == again


@pytest.mark.parametrize("name", RESHARDED)
def test_the_hybrid_goes_on_in_another_layout_with_its_optimiser(name: str, seen: dict[str, Seen]) -> None:
    load = RESHARDED[name][0]
    assert seen[name].steps[0] == pytest.approx(seen[load].next_steps[0], rel=1e-4, abs=1e-5)
    assert seen[name].steps[1]["loss"] != pytest.approx(seen[load].steps[1]["loss"], rel=1e-3)


def test_no_rank_ever_holds_logits_of_the_whole_vocabulary(seen: dict[str, Seen]) -> None:
    assert seen[WIDE].width == BIG_VOCABULARY // 2
