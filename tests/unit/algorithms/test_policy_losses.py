import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seatrial_api.spec.algorithm import AggregationName, LossName, LossSpec
from seatrial_trainer.algorithms.aggregation import token_weights
from seatrial_trainer.algorithms.losses import TokenLosses, kl_penalty, mismatch_kl, policy_loss
from tests.unit.algorithms.golden import GOLDEN

NAMES: tuple[LossName, ...] = ("dppo", "glm5", "ppo-clip", "tis", "mis")
MU = 0.4


def losses(logprobs: Tensor, rollout: Any, advantages: Any, mask: Any, spec: LossSpec) -> TokenLosses:
    return policy_loss(
        logprobs,
        torch.as_tensor(rollout, dtype=logprobs.dtype),
        torch.as_tensor(advantages, dtype=logprobs.dtype),
        torch.as_tensor(mask, dtype=torch.bool),
        spec,
    )


def one_token(p: float, advantage: float, spec: LossSpec, *, mu: float = MU) -> tuple[float, bool]:
    """Gradient by log p, and whether the bound stopped it."""
    logprobs = torch.tensor([math.log(p)], dtype=torch.float64, requires_grad=True)
    result = losses(logprobs, [math.log(mu)], [advantage], [True], spec)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    return gradient.item(), bool(result.clipped)


@pytest.mark.parametrize(
    ("p", "advantage", "gradient"),
    [
        (0.5, 2.0, -2.0 * 0.5 / MU),
        (0.56, 2.0, 0.0),  # p - mu = 0.16 > high
        (0.56, -2.0, 2.0 * 0.56 / MU),  # only a fall is bounded where A < 0
        (0.24, -2.0, 0.0),  # mu - p = 0.16 > low
        (0.24, 2.0, -2.0 * 0.24 / MU),
    ],
)
def test_dppo_masks_a_token_that_moved_too_far_in_the_rewarded_direction(
    p: float, advantage: float, gradient: float
) -> None:
    found, clipped = one_token(p, advantage, LossSpec(name="dppo", low=0.15, high=0.15))
    assert found == pytest.approx(gradient)
    assert clipped == (gradient == 0)


def test_dppo_lets_a_rare_token_grow_by_a_large_factor_up_to_the_cap() -> None:
    spec = LossSpec(name="dppo", low=0.15, high=0.15, ratio_cap=20)
    assert one_token(0.01, 1.0, spec, mu=0.001) == (pytest.approx(-10.0), False)
    assert one_token(0.1, 1.0, spec, mu=0.001) == (pytest.approx(-20.0), False)


@pytest.mark.parametrize(
    ("name", "ratio", "kept"),
    [
        ("glm5", 0.499, 0.0),
        ("glm5", 0.501, 0.501),
        ("glm5", 1.999, 1.999),
        ("glm5", 2.001, 0.0),
        ("mis", 0.499, 0.0),
        ("mis", 0.501, 0.501),
        ("mis", 1.999, 1.999),
        ("mis", 2.001, 0.0),
    ],
)
def test_a_ratio_outside_the_band_stops_the_gradient(name: LossName, ratio: float, kept: float) -> None:
    gradient, clipped = one_token(ratio * MU, 3.0, LossSpec(name=name, low=0.5, high=1.0))
    assert gradient == pytest.approx(-3.0 * kept)
    assert clipped == (kept == 0)


@pytest.mark.parametrize(("name", "gradient"), [("glm5", 0.0), ("mis", -2.0)])
def test_the_bound_itself_is_outside_for_glm5_and_inside_for_mis(name: LossName, gradient: float) -> None:
    logprobs = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    result = losses(logprobs, [-math.log(2.0)], [1.0], [True], LossSpec(name=name, low=0.5, high=1.0))
    (found,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert found.item() == pytest.approx(gradient)


@pytest.mark.parametrize(("p", "gradient"), [(0.2, -0.5), (0.8, -2.0), (0.9, -2.0)])
def test_tis_cuts_the_ratio_and_keeps_the_gradient(p: float, gradient: float) -> None:
    assert one_token(p, 1.0, LossSpec(name="tis", ratio_cap=2.0))[0] == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("p", "advantage", "gradient"),
    [
        (0.5, 1.0, -1.25),
        (0.53, 1.0, 0.0),  # ratio 1.325 above 1.3: no more to gain
        (0.53, -1.0, 1.325),  # the minimum takes the free term
        (0.30, -1.0, 0.0),  # ratio 0.75 below 0.8
        (0.30, 1.0, -0.75),
    ],
)
def test_ppo_clip_takes_the_smaller_of_free_and_bounded_gain(p: float, advantage: float, gradient: float) -> None:
    found, clipped = one_token(p, advantage, LossSpec(name="ppo-clip", low=0.2, high=0.3))
    assert found == pytest.approx(gradient)
    assert clipped == (gradient == 0)


def test_ppo_clip_has_the_value_of_its_formula() -> None:
    logprobs = torch.tensor([0.53, 0.53], dtype=torch.float64).log()
    spec = LossSpec(name="ppo-clip", low=0.2, high=0.3)
    assert losses(logprobs, [math.log(MU)] * 2, [1.0, -1.0], [True] * 2, spec).loss.tolist() == pytest.approx(
        [-1.3, 1.325]
    )


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_loss_has_the_gradient_of_reinforce(name: LossName) -> None:
    assert one_token(MU, 1.5, LossSpec(name=name)) == (pytest.approx(-1.5), False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_that_no_float_holds_leaves_the_gradient_finite(name: LossName, advantage: float) -> None:
    logprobs = torch.tensor([-1e-3], requires_grad=True)
    result = losses(logprobs, [-2000.0], [advantage], [True], LossSpec(name=name))
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(result.loss).all()


poison = st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 0.0])


@given(name=st.sampled_from(NAMES), logprob=poison, rollout=poison, advantage=poison)
def test_what_stands_outside_the_mask_reaches_neither_loss_nor_gradient(
    name: LossName, logprob: float, rollout: float, advantage: float
) -> None:
    spec = LossSpec(name=name)
    clean = torch.tensor([-0.7, -0.2], dtype=torch.float64, requires_grad=True)
    dirty = torch.tensor([-0.7, logprob, -0.2], dtype=torch.float64, requires_grad=True)
    expected = losses(clean, [-0.6, -0.3], [1.0, -1.0], [True, True], spec)
    found = losses(dirty, [-0.6, rollout, -0.3], [1.0, advantage, -1.0], [True, False, True], spec)
    (clean_gradient,) = torch.autograd.grad(expected.loss.sum(), clean)
    (dirty_gradient,) = torch.autograd.grad(found.loss.sum(), dirty)
    assert found.loss.sum() == expected.loss.sum()
    assert dirty_gradient[[0, 2]].equal(clean_gradient)
    assert dirty_gradient[1] == 0
    assert not found.clipped[1]


KLName = Literal["k1", "k2", "k3"]


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [("k1", 0.5, 0.5), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))],
)
def test_a_kl_estimator_has_its_value_and_a_gradient_that_penalises(
    estimator: KLName, value: float, gradient: float
) -> None:
    logprobs = torch.tensor([-1.0, math.nan], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, math.nan], dtype=torch.float64)
    kl = kl_penalty(logprobs, reference, torch.tensor([True, False]), estimator)
    (found,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.tolist() == pytest.approx([value, 0.0])
    assert found.tolist() == pytest.approx([gradient, 0.0])


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_the_mean_gradient_of_k1_and_k2_is_that_of_the_kl(estimator: KLName) -> None:
    logits = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logprobs = logits.log_softmax(0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    kl = kl_penalty(logprobs, reference, torch.ones(3, dtype=torch.bool), estimator)
    (found,) = torch.autograd.grad((logprobs.exp().detach() * kl).sum(), logits)
    assert found.tolist() == pytest.approx(expected.tolist())


def test_mismatch_kl_is_zero_where_trainer_and_rollout_agree_and_positive_elsewhere() -> None:
    log_ratio = math.log(1.5)
    kl = mismatch_kl(torch.tensor([-1.0, -1.0 + log_ratio]), torch.tensor([-1.0, -1.0]))
    assert kl.tolist() == pytest.approx([0.0, 1.5 - log_ratio - 1])


@pytest.mark.parametrize(
    ("key", "spec", "aggregation"),
    [
        ("dppo token_mean", LossSpec(name="dppo"), "token_mean"),
        ("dppo sequence_mean", LossSpec(name="dppo"), "sequence_mean"),
        ("dppo seq_mean_token_sum_norm", LossSpec(name="dppo"), "seq_mean_token_sum_norm"),
        ("dppo prompt_mean", LossSpec(name="dppo"), "prompt_mean"),
        ("ppo-clip prompt_mean", LossSpec(name="ppo-clip", low=0.2, high=0.28), "prompt_mean"),
        ("glm5 prompt_mean", LossSpec(name="glm5", low=0.5, high=4.0), "prompt_mean"),
    ],
)
def test_gradients_equal_those_of_skyrl(key: str, spec: LossSpec, aggregation: AggregationName) -> None:
    mask = torch.tensor(GOLDEN["mask"], dtype=torch.bool)
    counts = mask.sum(1).tolist()
    weights = token_weights([counts[:3], counts[3:]], aggregation, max_tokens=50)
    per_row = torch.tensor([w for group in weights for w in group], dtype=torch.float64)
    advantages = torch.tensor(GOLDEN["advantages"]["grpo-std"], dtype=torch.float64)
    logprobs = torch.tensor(GOLDEN["logprobs"], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor(GOLDEN["rollout_logprobs"], dtype=torch.float64)

    result = losses(logprobs.flatten(), rollout.flatten(), advantages.repeat_interleave(5), mask.flatten(), spec)
    (found,) = torch.autograd.grad((per_row.repeat_interleave(5) * result.loss).sum(), logprobs)

    expected = torch.tensor(GOLDEN["gradients"][key], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)  # SkyRL takes exp() of a ratio in 32 bits
    assert expected.count_nonzero() > mask.sum() / 2
