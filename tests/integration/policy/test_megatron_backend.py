"""megatron-core on two ranks gives what the torch backend gives on one: probabilities, gradients, curves, weights."""

from pathlib import Path

import pytest
import torch

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import LoRA
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import MakeModel, make_sequences, make_setup
from tests.megatron_ranks import NUM_RANKS, Case, Seen, flat, look, run

pytestmark = pytest.mark.timeout(600)

ROUNDING = {"rtol": 1e-4, "atol": 2e-4}
"""32-bit sums in another order, over three steps of 0.01: Adam makes whole steps of gradients that are rounding."""

ADAPTERS = LoRA(rank=4, alpha=12)

LAYOUTS = {
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "interleaved": {"pipeline": 2, "virtualPipeline": 2},
    "context": {"context": 2},
    "context-experts": {"context": 2, "expert": 2},
    "data": {},
    "experts": {"expert": 2},
    "expert-tensor": {"tensor": 2, "expertTensor": 2},
    "odd-vocabulary": {"tensor": 2},
    "adapters-tensor": {"tensor": 2},
    "adapters-pipeline": {"pipeline": 2},
}
MODELS = {
    "interleaved": "deep",
    "context-experts": "moe",
    "experts": "moe",
    "expert-tensor": "moe",
    "odd-vocabulary": "llama",
}
RESHARDED = {
    "data-from-tensor": ("tensor", {}),
    "pipeline-from-data": ("data", {"pipeline": 2}),
    "context-from-interleaved": ("interleaved", {"context": 2}),
    "adapters-pipeline-from-tensor": ("adapters-tensor", {"pipeline": 2}),
}


@pytest.fixture(scope="module")
def models(make_model: MakeModel) -> dict[str, Path]:
    return {
        "qwen3": make_model(),
        "deep": make_model(num_hidden_layers=4),
        "llama": make_model("LlamaConfig", vocab_size=65),
        "moe": make_model("Qwen3MoeConfig", norm_topk_prob=True),
    }


@pytest.fixture(scope="module")
def cases(models: dict[str, Path]) -> dict[str, Case]:
    sequences = make_sequences()
    sizing = {"backend": "megatron", "ranks": NUM_RANKS, "max_tokens_per_microbatch": 64}

    def case(name: str, sizes: dict[str, int], model: str, load: str | None = None) -> Case:
        setup = make_setup(lora=ADAPTERS if "adapters" in name else None, parallelism=sizes, **sizing)
        return Case.of(name, setup, models[model], sequences, load)

    plain = {name: case(name, sizes, MODELS.get(name, "qwen3")) for name, sizes in LAYOUTS.items()}
    resharded = {name: case(name, sizes, MODELS.get(load, "qwen3"), load) for name, (load, sizes) in RESHARDED.items()}
    return plain | resharded


@pytest.fixture(scope="module")
def seen(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    return run(list(cases.values()), tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def expected(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """By layout: what the torch backend gives of the same model, with adapters or without."""
    found: dict[tuple[Path, bool], Seen] = {}

    def look_at(case: Case) -> Seen:
        key = case.model, case.setup.model.lora is not None
        if key not in found:
            setup = make_setup(lora=case.setup.model.lora)
            found[key] = look(TorchBackend(setup, case.model), case, tmp_path_factory.mktemp("torch"))
        return found[key]

    return {name: look_at(cases[name]) for name in LAYOUTS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_same_probabilities_and_curve(
    name: str, seen: dict[str, Seen], expected: dict[str, Seen]
) -> None:
    ours, theirs = seen[name], expected[name]
    assert flat(ours.logprobs) == pytest.approx(flat(theirs.logprobs), abs=1e-5)
    assert flat(ours.reference) == pytest.approx(flat(ours.logprobs), abs=1e-6)
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_exports_the_same_weights(name: str, seen: dict[str, Seen], expected: dict[str, Seen]) -> None:
    ours, theirs = seen[name].weights, expected[name].weights
    assert ours.keys() == theirs.keys()
    for weight, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[weight], **ROUNDING)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_is_restored_to_the_bit(name: str, seen: dict[str, Seen]) -> None:
    first, again = seen[name].next_steps
    assert first == again


@pytest.mark.parametrize("name", RESHARDED)
def test_another_layout_goes_on_from_a_checkpoint_with_its_optimiser(name: str, seen: dict[str, Seen]) -> None:
    load, _ = RESHARDED[name]
    assert seen[name].steps[0] == pytest.approx(seen[load].next_steps[0], rel=1e-4, abs=1e-5)
    assert seen[name].steps[1]["loss"] != pytest.approx(seen[load].steps[1]["loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "ranks", "words"),
    [
        ({"tensor": 8}, 8, r"parallelism\.tensor: 8 does not divide the model's \d .*heads"),
        ({"pipeline": 4}, 4, r"parallelism\.pipeline: 4 does not divide the model's 2 layers"),
        ({"expert": 2}, 2, r"parallelism\.expert: 2 does not divide the model's 1 experts"),
        ({"pipeline": 2, "virtualPipeline": 2}, 2, r"virtualPipeline: 2 does not divide .* 1 layers of a stage"),
    ],
)
def test_a_layout_that_does_not_fit_the_model_is_refused_by_field(
    sizes: dict[str, int], ranks: int, words: str, model_path: Path
) -> None:
    from transformers import AutoConfig  # noqa: PLC0415

    from seatrial_trainer.policy.megatron.layout import check_layout  # noqa: PLC0415

    setup = make_setup(backend="megatron", ranks=ranks, parallelism=sizes)
    with pytest.raises(InvalidInputError, match=words):
        check_layout(AutoConfig.from_pretrained(model_path), setup.trainer)
