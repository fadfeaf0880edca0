"""Ranks of the torch backend that hold a part each give what one rank gives that holds everything."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seatrial_api.spec.model import LoRA
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import MakeModel, make_sequences, make_setup
from tests.megatron_ranks import Case, Seen, flat, look
from tests.torch_ranks import Parts, run

pytestmark = pytest.mark.timeout(1200)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("qwen3", {}),
    "untied-odd-vocabulary": ("llama", {}),
    "experts": ("moe", {}),
    "recurrent": ("qwen3.5", {}),
    "selective": ("qwen3", {"recompute": "Selective"}),
    "full": ("qwen3", {"recompute": "Full"}),
    "offloaded": ("qwen3", {"offload_optimizer": True}),
    "adapters": ("qwen3", {}),
    "a-rank-without-a-pack": ("qwen3", {}),
    "sixteen-bits": ("qwen3", {"dtype": "bfloat16"}),
    "from-one-rank": ("qwen3", {}),
}


@pytest.fixture(scope="module")
def models(make_model: MakeModel) -> dict[str, Path]:
    return {
        "qwen3": make_model(),
        "llama": make_model("LlamaConfig", vocab_size=65),
        "moe": make_model("Qwen3MoeConfig", norm_topk_prob=True),
        "qwen3.5": make_model("Qwen3_5TextConfig"),
    }


@pytest.fixture(scope="module")
def cases(models: dict[str, Path]) -> dict[str, Case]:
    return {name: _case(name, models[model], **fields) for name, (model, fields) in CASES.items()}


def _case(name: str, model: Path, **fields: Any) -> Case:
    lora = LoRA(rank=4, alpha=8) if name == "adapters" else None
    setup = make_setup(ranks=1, lora=lora, max_tokens_per_microbatch=40, **fields)
    sequences = make_sequences(1, 1) if name == "a-rank-without-a-pack" else make_sequences()
    load = "tied-by-one" if name == "from-one-rank" else None
    return Case.of(name, setup, model, sequences, load)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(cases: dict[str, Case], folder: Path) -> dict[str, Seen]:
    """What one rank gives."""
    first = replace(cases["tied"], name="tied-by-one")
    look(TorchBackend(first.setup, first.model), first, folder)
    return {
        name: look(TorchBackend(case.setup, case.model), replace(case, name=f"{name}-alone"), folder)
        for name, case in cases.items()
    }


@pytest.fixture(scope="module")
def together(alone: dict[str, Seen], cases: dict[str, Case], folder: Path) -> dict[str, Parts]:
    """What two ranks give, in the folder where checkpoints of one rank lie."""
    assert alone
    return run(list(cases.values()), folder, 2)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_have_the_probabilities_and_the_curve_of_one(
    name: str, alone: dict[str, Seen], together: dict[str, Parts]
) -> None:
    one, two = alone[name], together[name].seen
    loose = name == "sixteen-bits"
    assert flat(two.logprobs) == pytest.approx(flat(one.logprobs), abs=0.05 if loose else 1e-5)
    assert flat(two.reference) == pytest.approx(flat(one.reference), abs=0.05 if loose else 1e-5)
    assert len(two.steps) == len(one.steps) == 3
    for ours, theirs in zip(two.steps, one.steps, strict=True):
        assert ours == pytest.approx(theirs, rel=0.1 if loose else 1e-4, abs=0.02 if loose else 1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name != "sixteen-bits"])
def test_two_ranks_learn_the_weights_of_one(name: str, alone: dict[str, Seen], together: dict[str, Parts]) -> None:
    # 32-bit sums in another order, over three steps at a learning rate of 0.01
    one, two = alone[name].weights, together[name].seen.weights
    assert one.keys() == two.keys()
    for weight, tensor in one.items():
        torch.testing.assert_close(two[weight], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_step_from_a_checkpoint_is_the_step_that_was_taken(name: str, together: dict[str, Parts]) -> None:
    taken, again = together[name].seen.next_steps
    assert again == taken


@pytest.mark.parametrize("name", [name for name in CASES if name != "adapters"])
def test_each_rank_holds_a_part_of_weights_gradient_and_optimiser(
    name: str, alone: dict[str, Seen], together: dict[str, Parts]
) -> None:
    parts = together[name]
    count = sum(tensor.numel() for tensor in alone[name].weights.values())
    assert sum(parts.held) == sum(parts.gradient) == count
    assert max(parts.held) < 0.55 * count


def test_of_adapters_the_base_alone_is_cut(alone: dict[str, Seen], together: dict[str, Parts]) -> None:
    parts = together["adapters"]
    count = sum(tensor.numel() for tensor in alone["adapters"].weights.values())
    assert sum(parts.held) == count
    assert parts.gradient[0] == parts.gradient[1]


def test_the_exported_model_is_that_of_both_ranks(together: dict[str, Parts], folder: Path) -> None:
    exported = TorchBackend(make_setup(), folder / "tied-model").logprobs([[1, 2, 3, 4]])
    assert exported[0][1] != 0
    assert (folder / "adapters-model" / "config.json").exists()
    assert together


def test_one_rank_goes_on_from_a_checkpoint_of_two(
    cases: dict[str, Case], together: dict[str, Parts], folder: Path
) -> None:
    case = replace(cases["tied"], load="tied", name="from-two-ranks")
    seen = look(TorchBackend(case.setup, case.model), case, folder)
    expected, _ = together["tied"].seen.next_steps
    assert seen.steps[0] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_three_ranks_go_on_from_a_checkpoint_of_two(
    cases: dict[str, Case], together: dict[str, Parts], folder: Path
) -> None:
    case = replace(cases["tied"], load="tied", name="from-two-to-three")
    found = run([case], folder, 3)["from-two-to-three"]
    expected, _ = together["tied"].seen.next_steps
    assert found.seen.steps[0] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len(found.held) == 3
