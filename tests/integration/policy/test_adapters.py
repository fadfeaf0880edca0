"""Adapters of the torch backend: their gradient, what engines get of them, and what a checkpoint holds."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.algorithm import LossSpec
from seatrial_api.spec.model import LoRA
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import MakeModel, make_sequences, make_setup

DPPO = LossSpec(name="dppo", low=0.15, high=0.15)
RANK, ALPHA = 4, 12
IDS = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]


def lora_setup(targets: list[str] | None = None, dtype: str = "float32", **trainer: Any) -> PolicySetup:
    return make_setup(dtype, lora=LoRA(rank=RANK, alpha=ALPHA, target_modules=targets), **trainer)


def make_backend(model_path: Path, targets: list[str] | None = None, **fields: Any) -> TorchBackend:
    return TorchBackend(lora_setup(targets, **fields), model_path)


def adapters(backend: TorchBackend) -> dict[str, Tensor]:
    return {name: master.detach() for name, master in backend._weights.masters.items()}


@torch.no_grad()
def stir(backend: TorchBackend) -> None:
    """Adapters that add something; they start without effect."""
    torch.manual_seed(1)
    for parameter in backend._weights.masters.values():
        parameter.copy_(torch.randn_like(parameter) * 0.1)
    backend._weights._round_masters()


def train(backend: TorchBackend, seed: int = 0) -> None:
    backend.forward_backward(Minibatch(make_sequences(seed=seed), DPPO))
    backend.optim_step(1e-2)


def gradient_by_hand(model_path: Path, values: dict[str, Tensor], sequences: list[TrainingSequence]) -> Tensor:
    """The gradient of A and B through whole matrices W + alpha / r B A, each sequence alone."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    frozen = {name: p.detach() for name, p in model.named_parameters()}
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    names = [name.removesuffix(".lora_A") for name in leaves if name.endswith(".lora_A")]
    for s in sequences:
        sums = {
            f"{name}.weight": frozen[f"{name}.weight"]
            + ALPHA / RANK * leaves[f"{name}.lora_B"] @ leaves[f"{name}.lora_A"]
            for name in names
        }
        ids = torch.tensor([s.token_ids])
        logits = torch.func.functional_call(model, frozen | sums, (ids,)).logits
        logp = logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        mu, mask = torch.tensor(s.logprobs)[1:], torch.tensor(s.loss_mask)[1:].bool()
        ratio, gain = (logp - mu).exp().detach(), (logp.exp() - mu.exp()).detach()
        free = ~((s.advantage > 0) & (gain > 0.15) | (s.advantage < 0) & (-gain > 0.15))
        (-s.weight * s.advantage * (ratio.clamp(max=20) * logp * free)[mask].sum()).backward()
    gradients = [leaf.grad.flatten() for leaf in leaves.values() if leaf.grad is not None]
    assert len(gradients) == len(leaves)
    return torch.cat(gradients)


@pytest.mark.parametrize("recompute", ["None", "Selective", "Full"])
def test_the_gradient_is_that_of_a_product_added_to_each_matrix(model_path: Path, recompute: str) -> None:
    backend = make_backend(model_path, recompute=recompute)
    stir(backend)
    sequences = make_sequences()
    backend.forward_backward(Minibatch(sequences, DPPO))
    expected = gradient_by_hand(model_path, adapters(backend), sequences)
    torch.testing.assert_close(backend._weights.gradient, expected, rtol=2e-4, atol=2e-6)


def test_a_policy_with_fresh_adapters_is_the_base_model(model_path: Path) -> None:
    assert make_backend(model_path).logprobs(IDS) == TorchBackend(make_setup(), model_path).logprobs(IDS)


def test_all_linear_layers_but_the_head_get_an_adapter(make_model: MakeModel) -> None:
    untied = make_model(tie_word_embeddings=False)
    kinds = {name.split(".")[-2] for name in adapters(make_backend(untied))}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert any("lm_head" in name for name in adapters(make_backend(untied, ["lm_head"])))


def test_only_named_layers_get_an_adapter(model_path: Path) -> None:
    backend = make_backend(model_path, ["q_proj", "layers.1.mlp.up_proj"])
    assert {name.removesuffix(".lora_A") for name in adapters(backend) if name.endswith("A")} == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    }


def test_a_target_that_names_nothing_is_told_with_the_names_there_are(model_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"targetModules: 'query' .* they end with down_proj, gate_proj"):
        make_backend(model_path, ["query"])


def test_training_leaves_the_base_as_it_was(model_path: Path) -> None:
    backend = make_backend(model_path)
    base = {name: p.clone() for name, p in backend._model.module.named_parameters()}
    initial = backend.logprobs(IDS)
    train(backend)
    assert all(p.equal(base[name]) for name, p in backend._model.module.named_parameters())
    assert backend.logprobs(IDS) != initial
    assert backend.logprobs(IDS, reference=True) == initial


def test_a_kl_penalty_is_taken_against_the_base(model_path: Path) -> None:
    backend = make_backend(model_path)
    silent = [replace(s, advantage=0.0, kl_coefficient=0.5) for s in make_sequences()]
    assert backend.forward_backward(Minibatch(silent, DPPO)).kl_to_reference == pytest.approx(0, abs=1e-9)
    stir(backend)
    assert backend.forward_backward(Minibatch(silent, DPPO)).kl_to_reference > 1e-6
    assert backend._reference is None


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_an_exported_model_has_the_adapters_in_its_weights(
    model_path: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    backend = make_backend(model_path, dtype=dtype)
    base = TorchBackend(make_setup(dtype), model_path).logprobs(IDS)
    stir(backend)
    backend.export(tmp_path / "model")
    plain = TorchBackend(make_setup(dtype), tmp_path / "model").logprobs(IDS)
    for one, other, before in zip(plain, backend.logprobs(IDS), base, strict=True):
        assert one == pytest.approx(other, abs=tolerance)
        assert one != pytest.approx(before, abs=tolerance)


def test_a_checkpoint_holds_adapters_and_their_optimiser_alone(model_path: Path, tmp_path: Path) -> None:
    backend = make_backend(model_path, ["q_proj"])
    train(backend, 1)
    backend.save(tmp_path)
    with safe_open(tmp_path / "policy.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert all(".q_proj.lora_" in name for name in names)
    assert {name.split("/")[0] for name in names} == {"weights", "step", "exp_avg", "exp_avg_sq"}
    train(backend, 2)

    restored = make_backend(model_path, ["q_proj"])
    restored.load(tmp_path)
    train(restored, 2)
    assert restored.logprobs(IDS) == backend.logprobs(IDS)
    assert all(math.isfinite(value) for row in restored.logprobs(IDS) for value in row)
