import math
import random
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from seatrial_api.errors import CorruptionError, InvalidInputError
from seatrial_api.spec.algorithm import LossSpec
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import MakeModel, make_sequences, make_setup

DPPO = LossSpec(name="dppo", low=0.15, high=0.15)
ROUNDING = {"rtol": 2e-4, "atol": 2e-6}
"""32-bit sums in another order; gradients here are of size 0.01 to 1."""


def gradient(backend: TorchBackend, sequences: list[TrainingSequence], **fields: Any) -> Tensor:
    backend.forward_backward(Minibatch(sequences, fields.pop("loss", DPPO), **fields))
    found = backend._weights.gradient.clone()
    backend._weights.zero_gradient()
    return found


def plain_gradient(model_path: Path, sequences: list[TrainingSequence]) -> Tensor:
    """The same gradient the obvious way: each sequence alone, all logits, the loss as its formula stands."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    for s in sequences:
        ids = torch.tensor([s.token_ids])
        logp = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        mu, mask = torch.tensor(s.logprobs)[1:], torch.tensor(s.loss_mask)[1:].bool()
        ratio, gain = (logp - mu).exp().detach(), (logp.exp() - mu.exp()).detach()
        free = ~((s.advantage > 0) & (gain > 0.15) | (s.advantage < 0) & (-gain > 0.15))
        (-s.weight * s.advantage * (ratio.clamp(max=20) * logp * free)[mask].sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def backend(model_path: Path) -> TorchBackend:
    """For tests that leave weights and gradient as they were."""
    return TorchBackend(make_setup(), model_path)


def test_the_gradient_is_that_of_each_sequence_alone_with_all_its_logits(
    backend: TorchBackend, model_path: Path
) -> None:
    sequences = make_sequences()
    torch.testing.assert_close(gradient(backend, sequences), plain_gradient(model_path, sequences), **ROUNDING)


@pytest.mark.parametrize(
    ("config_class", "fields", "shares"),
    [
        ("LlamaConfig", {}, True),
        ("MistralConfig", {"sliding_window": 5}, True),
        ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 5}, True),
        ("Gemma2Config", {"head_dim": 8, "final_logit_softcapping": 0.5}, False),
        ("GraniteConfig", {"logits_scaling": 3.0}, True),
        ("Qwen3MoeConfig", {}, True),
        ("Qwen3_5TextConfig", {}, False),
    ],
)
def test_any_architecture_has_the_gradient_of_its_sequences_alone(
    make_model: MakeModel, config_class: str, fields: dict[str, Any], *, shares: bool
) -> None:
    path = make_model(config_class, **fields)
    backend = TorchBackend(make_setup(), path)
    sequences = make_sequences()
    assert backend._model.shares_prefixes is shares
    torch.testing.assert_close(gradient(backend, sequences), plain_gradient(path, sequences), **ROUNDING)


@pytest.mark.parametrize("budget", [1, 16, 40, 4096])
def test_neither_budget_nor_order_changes_the_gradient(backend: TorchBackend, budget: int) -> None:
    sequences = make_sequences()
    expected = gradient(backend, sequences)
    shuffled = random.Random(budget).sample(sequences, len(sequences))  # noqa: S311  a test's order
    usual, backend._budget = backend._budget, budget
    try:
        torch.testing.assert_close(gradient(backend, shuffled), expected, **ROUNDING)
    finally:
        backend._budget = usual


def test_taking_logits_a_few_rows_at_a_time_changes_nothing(backend: TorchBackend) -> None:
    sequences = make_sequences()
    expected = gradient(backend, sequences)
    usual, backend._logit_rows = backend._logit_rows, 3
    try:
        torch.testing.assert_close(gradient(backend, sequences), expected, **ROUNDING)
    finally:
        backend._logit_rows = usual


def test_splitting_a_trajectory_into_branches_changes_nothing(backend: TorchBackend) -> None:
    sequences = [s for s in make_sequences() if sum(s.loss_mask) > 1]
    expected = gradient(backend, sequences)
    split = []
    for s in sequences:
        first = s.loss_mask.index(1) + 1
        head = replace(s, token_ids=s.token_ids[:first], loss_mask=s.loss_mask[:first], logprobs=s.logprobs[:first])
        split += [head, replace(s, loss_mask=[0] * first + s.loss_mask[first:])]
    torch.testing.assert_close(gradient(backend, split), expected, **ROUNDING)


def test_what_stands_outside_the_mask_never_matters(backend: TorchBackend) -> None:
    sequences = make_sequences()
    poisoned = [
        replace(s, logprobs=[p if m else math.nan for p, m in zip(s.logprobs, s.loss_mask, strict=True)])
        for s in sequences
    ]
    assert gradient(backend, poisoned).equal(gradient(backend, sequences))


def test_tokens_after_the_last_sampled_one_are_not_computed(backend: TorchBackend) -> None:
    (s,) = make_sequences(1, 1)
    longer = replace(
        s, token_ids=[*s.token_ids, 5, 6], loss_mask=[*s.loss_mask, 0, 0], logprobs=[*s.logprobs, 0.0, 0.0]
    )
    assert backend.forward_backward(Minibatch([longer], DPPO)).num_total_tokens < len(s.token_ids)
    backend._weights.zero_gradient()
    assert gradient(backend, [longer]).equal(gradient(backend, [s]))


def test_the_same_minibatch_gives_the_same_bits(backend: TorchBackend) -> None:
    assert gradient(backend, make_sequences()).equal(gradient(backend, make_sequences()))


@pytest.mark.parametrize("recompute", ["Selective", "Full"])
def test_recomputing_activations_gives_the_same_gradient(
    backend: TorchBackend, model_path: Path, recompute: str
) -> None:
    other = TorchBackend(make_setup(recompute=recompute), model_path)
    torch.testing.assert_close(gradient(other, make_sequences()), gradient(backend, make_sequences()), **ROUNDING)


def test_figures_are_those_of_the_sampled_tokens(backend: TorchBackend, model_path: Path) -> None:
    sequences = make_sequences()
    stats = backend.forward_backward(Minibatch(sequences, DPPO))
    backend._weights.zero_gradient()
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    differences, entropies, mismatches, losses = [], [], [], []
    for s in sequences:
        ids = torch.tensor([s.token_ids])
        distribution = model(ids).logits[0, :-1].log_softmax(-1).detach()
        for t in (i for i, m in enumerate(s.loss_mask) if m):
            logp, mu = distribution[t - 1, s.token_ids[t]].item(), s.logprobs[t]
            differences.append(abs(logp - mu))
            mismatches.append(math.exp(logp - mu) - (logp - mu) - 1)
            entropies.append(-(distribution[t - 1].exp() * distribution[t - 1]).sum().item())
            losses.append(-s.weight * s.advantage * math.exp(logp - mu) * logp)
    assert stats.num_tokens == len(differences)
    assert stats.logprob_abs_diff_mean == pytest.approx(sum(differences) / len(differences), rel=1e-4)
    assert stats.logprob_abs_diff_max == pytest.approx(max(differences), rel=1e-4)
    assert stats.mismatch_kl == pytest.approx(sum(mismatches) / len(mismatches), rel=1e-3)
    assert stats.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)
    assert stats.loss == pytest.approx(sum(losses), rel=1e-3)
    assert stats.packing_waste == 0


def test_log_probabilities_are_those_of_the_model(backend: TorchBackend, model_path: Path) -> None:
    sequences = [s.token_ids for s in make_sequences()] + [[7], []]
    found = backend.logprobs(sequences)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    for ids, values in zip(sequences[:-2], found[:-2], strict=True):
        row = torch.tensor([ids])
        expected = model(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
        assert values == pytest.approx([0.0, *expected.tolist()], abs=1e-5)
    assert found[-2:] == [[0.0], []]


def test_a_step_is_adamws_on_the_clipped_gradient(model_path: Path) -> None:
    backend = TorchBackend(make_setup(), model_path)
    before = {name: p.clone() for name, p in backend._weights.masters.items()}
    backend.forward_backward(Minibatch([replace(s, weight=1.0) for s in make_sequences()], DPPO))
    whole = backend._weights.gradient.clone()
    stats = backend.optim_step(1e-2)
    assert stats.grad_norm == pytest.approx(whole.norm().item())
    assert stats.grad_norm > 1.0
    assert not stats.skipped
    assert not backend._weights.gradient.any()
    offset = 0
    for name, old in before.items():
        g = whole[offset : offset + old.numel()].view_as(old) / whole.norm()
        offset += old.numel()
        decayed = old * (1 - 1e-2 * (0.01 if old.dim() > 1 else 0.0))  # norms and biases do not decay
        expected = decayed - 1e-2 * g / (g.abs() + 1e-8)  # the first step: both moments equal the gradient
        torch.testing.assert_close(backend._weights.masters[name].detach(), expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_not_finite_is_skipped_and_reported(model_path: Path) -> None:
    backend = TorchBackend(make_setup(), model_path)
    before = backend.logprobs([[1, 2, 3]])
    first, *others = make_sequences()
    backend.forward_backward(Minibatch([replace(first, advantage=math.inf), *others], DPPO))
    assert backend.optim_step(1e-2).skipped
    assert backend.logprobs([[1, 2, 3]]) == before
    backend.forward_backward(Minibatch(others, DPPO))
    assert not backend.optim_step(1e-2).skipped


def test_training_raises_the_probability_of_what_was_rewarded(model_path: Path) -> None:
    backend = TorchBackend(make_setup(), model_path)
    good, bad = [1, 2, 3, 4], [1, 2, 5, 6]
    for _ in range(5):
        logprobs = backend.logprobs([good, bad])
        minibatch = Minibatch(
            [
                TrainingSequence(ids, [0, 0, 1, 1], values, advantage=sign, weight=0.25)
                for ids, values, sign in zip((good, bad), logprobs, (1.0, -1.0), strict=True)
            ],
            DPPO,
        )
        backend.forward_backward(minibatch)
        backend.optim_step(1e-2)
    after = backend.logprobs([good, bad])
    assert after[0][2] > logprobs[0][2]
    assert after[1][2] < logprobs[1][2]


def test_sixteen_bit_weights_round_masters_that_keep_small_steps(model_path: Path) -> None:
    backend = TorchBackend(make_setup("bfloat16"), model_path)
    parameters = dict(backend._model.module.named_parameters())
    name = "model.layers.0.mlp.up_proj.weight"
    start = backend._weights.masters[name].clone()
    for _ in range(3):
        backend.forward_backward(Minibatch(make_sequences(), DPPO))
        assert not backend.optim_step(1e-6).skipped
    master = backend._weights.masters[name]
    assert parameters[name].dtype == torch.bfloat16
    assert master.dtype == torch.float32
    assert parameters[name].equal(master.bfloat16())
    assert 1e-6 < (master - start).abs().max() < 1e-5


def test_sixteen_bit_gradients_add_up_in_thirty_two_bits(model_path: Path) -> None:
    backend = TorchBackend(make_setup("bfloat16"), model_path)
    sequences = make_sequences(1, 1)
    for _ in range(60):
        backend.forward_backward(Minibatch(sequences, DPPO))
    many = backend._weights.gradient.clone()
    backend._weights.zero_gradient()
    single = gradient(backend, sequences)
    torch.testing.assert_close(many, 60 * single, rtol=1e-3, atol=1e-5)
    assert single.dtype == torch.float32


def test_offloading_the_optimiser_gives_the_same_weights(model_path: Path) -> None:
    one, other = TorchBackend(make_setup(), model_path), TorchBackend(make_setup(offload_optimizer=True), model_path)
    for backend in (one, other):
        backend.forward_backward(Minibatch(make_sequences(), DPPO))
        backend.optim_step(1e-2)
    assert one.logprobs([[1, 2, 3]]) == other.logprobs([[1, 2, 3]])


def test_a_kl_penalty_pulls_towards_the_initial_weights(model_path: Path) -> None:
    backend = TorchBackend(make_setup(), model_path)
    initial = backend.logprobs([[1, 2, 3, 4]])
    backend.forward_backward(Minibatch(make_sequences(), DPPO))
    backend.optim_step(1e-2)
    trained = backend.logprobs([[1, 2, 3, 4]])
    assert backend.logprobs([[1, 2, 3, 4]], reference=True) == initial != trained
    assert backend.logprobs([[1, 2, 3, 4]]) == trained

    silent = [replace(s, advantage=0.0, kl_coefficient=0.5) for s in make_sequences()]
    first = backend.forward_backward(Minibatch(silent, DPPO)).kl_to_reference
    for _ in range(3):
        backend.optim_step(3e-3)
        last = backend.forward_backward(Minibatch(silent, DPPO)).kl_to_reference
    assert 0 < last < first


def test_without_a_kl_penalty_no_reference_is_kept(model_path: Path) -> None:
    backend = TorchBackend(make_setup(), model_path)
    backend.forward_backward(Minibatch(make_sequences(), DPPO))
    assert backend._reference is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_policy_goes_on_bit_by_bit(model_path: Path, tmp_path: Path, dtype: str) -> None:
    def step(backend: TorchBackend, seed: int) -> None:
        backend.forward_backward(Minibatch(make_sequences(seed=seed), DPPO))
        backend.optim_step(1e-3)

    original = TorchBackend(make_setup(dtype), model_path)
    step(original, 1)
    write = original.hold(tmp_path, tmp_path / "model")
    random_then = torch.rand(4)
    step(original, 2)
    write()

    restored = TorchBackend(make_setup(dtype), model_path)
    step(restored, 3)
    restored.load(tmp_path)
    assert torch.rand(4).equal(random_then)
    step(restored, 2)
    expected, found = original._weights.state(), restored._weights.state()
    assert expected.keys() == found.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    assert restored.logprobs([[1, 2, 3]]) == original.logprobs([[1, 2, 3]])


def test_a_fresh_policy_can_be_saved_and_restored(model_path: Path, tmp_path: Path) -> None:
    TorchBackend(make_setup(), model_path).save(tmp_path)
    trained = TorchBackend(make_setup(), model_path)
    initial = trained.logprobs([[1, 2, 3]])
    trained.forward_backward(Minibatch(make_sequences(), DPPO))
    trained.optim_step(1e-2)
    trained.load(tmp_path)
    assert trained.logprobs([[1, 2, 3]]) == initial


@pytest.mark.parametrize("damage", ["missing", "cut", "other model"])
def test_a_damaged_checkpoint_is_named(make_model: MakeModel, model_path: Path, tmp_path: Path, damage: str) -> None:
    backend = TorchBackend(make_setup(), model_path)
    backend.save(tmp_path)
    file = tmp_path / "policy.safetensors"
    match damage:
        case "missing":
            file.unlink()
        case "cut":
            file.write_bytes(file.read_bytes()[:-100])
        case "other model":
            TorchBackend(make_setup(), make_model(hidden_size=16)).save(tmp_path)
    with pytest.raises(CorruptionError, match=str(tmp_path)):
        backend.load(tmp_path)


def test_a_checkpoint_for_which_there_is_no_room_is_named(model_path: Path, tmp_path: Path) -> None:
    write = TorchBackend(make_setup(), model_path).hold(tmp_path / "7" / "policy", tmp_path / "7" / "model")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"the checkpoint {tmp_path / '7'} cannot be written: .*File too large"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=str(tmp_path)):
        TorchBackend(make_setup(), tmp_path)


@pytest.mark.parametrize(("mask", "reason"), [([0, 0, 0], "none was sampled"), ([1, 0, 0], "nothing predicts it")])
def test_a_sequence_that_cannot_be_trained_is_refused(backend: TorchBackend, mask: list[int], reason: str) -> None:
    sequence = TrainingSequence([1, 2, 3], mask, [0.0] * 3, advantage=1.0, weight=1.0)
    with pytest.raises(InvalidInputError, match=reason):
        backend.forward_backward(Minibatch([sequence], DPPO))


def test_mismatch_is_told_apart_from_staleness_by_the_version_of_each_token(backend: TorchBackend) -> None:
    sequences = [
        replace(
            s,
            logprobs=[p - 0.25 * (i % 2) for i, p in enumerate(s.logprobs)],
            weight_versions=[3 + i % 2 for i in range(len(s.token_ids))],
        )
        for s in make_sequences()
    ]
    stats = backend.forward_backward(Minibatch(sequences, DPPO, fresh_version=4))
    backend._weights.zero_gradient()
    fresh = sum(
        mask
        for s in sequences
        for mask, version in zip(s.loss_mask, s.weight_versions or [], strict=True)
        if version == 4
    )
    assert stats.num_fresh_tokens == fresh
    exact = backend.forward_backward(Minibatch(sequences, DPPO))
    backend._weights.zero_gradient()
    assert exact.num_fresh_tokens == 0
    assert 0 < stats.fresh_logprob_abs_diff_sum < stats.logprob_abs_diff_mean * stats.num_tokens
