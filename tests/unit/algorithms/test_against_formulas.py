"""Our algorithms against the published formulas in 64 bits, and against TRL's own code."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from seatrial_api.spec.algorithm import AdvantageSpec, AggregationName, LossName, LossSpec
from seatrial_trainer.algorithms import advantages as ours
from seatrial_trainer.algorithms.aggregation import token_weights
from seatrial_trainer.algorithms.losses import kl_penalty, policy_loss
from tests.unit.algorithms import formulas
from tests.unit.algorithms.golden import GOLDEN

TRL = json.loads(Path(__file__).with_name("trl_golden.json").read_text())
"""Numbers of TRL over the inputs of SkyRL's; the file says where they come from."""

NAMES: tuple[LossName, ...] = ("dppo", "glm5", "ppo-clip", "tis", "mis")
logprobs_strategy = st.floats(-9.0, -1e-3)
specs = st.builds(
    LossSpec,
    name=st.sampled_from(NAMES),
    low=st.floats(0.01, 0.9),
    high=st.floats(0.01, 0.9),
    ratio_cap=st.floats(1.0, 30.0),
)
tokens = st.lists(st.tuples(logprobs_strategy, logprobs_strategy, st.floats(-3, 3)), min_size=1, max_size=12)


def is_on_a_bound(logp: float, log_mu: float, spec: LossSpec) -> bool:
    """Whether rounding decides on which side of a bound the token lies."""
    p, mu = math.exp(logp), math.exp(log_mu)
    moved = (
        (p - mu - spec.high, mu - p - spec.low)
        if spec.name == "dppo"
        else (p / mu - 1 - spec.high, p / mu - 1 + spec.low)
    )
    return min(map(abs, (*moved, p / mu - spec.ratio_cap))) < 1e-9


@given(spec=specs, batch=tokens)
def test_value_and_gradient_of_every_loss_are_those_of_its_formula(
    spec: LossSpec, batch: list[tuple[float, float, float]]
) -> None:
    assume(not any(is_on_a_bound(logp, log_mu, spec) for logp, log_mu, _ in batch))
    logprobs, rollout, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*batch, strict=True))
    by_formula, by_us = (logprobs.clone().requires_grad_() for _ in range(2))
    expected = torch.stack(
        [formulas.token_loss(by_formula[i], log_mu, advantage, spec) for i, (_, log_mu, advantage) in enumerate(batch)]
    )
    found = policy_loss(by_us, rollout, advantages, torch.ones(len(batch), dtype=torch.bool), spec).loss
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        gradient(found.sum(), by_us), gradient(expected.sum(), by_formula), rtol=1e-12, atol=1e-12
    )


@given(
    logp=logprobs_strategy,
    reference=logprobs_strategy,
    estimator=st.sampled_from(["k1", "k2", "k3"]),
)
def test_the_gradient_of_every_kl_estimator_is_that_of_its_formula(
    logp: float, reference: float, estimator: str
) -> None:
    logprobs = torch.tensor([logp], dtype=torch.float64, requires_grad=True)
    kl = kl_penalty(logprobs, torch.tensor([reference], dtype=torch.float64), torch.tensor([True]), estimator)  # type: ignore[arg-type]  # drawn from its values
    expected = formulas.kl_gradient(logp, reference, estimator)
    assert gradient(kl.sum(), logprobs).item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


@given(
    rewards=st.lists(st.floats(0, 1), min_size=1, max_size=16),
    spec=st.sampled_from(
        [
            AdvantageSpec(name="grpo"),
            AdvantageSpec(name="grpo", normalize_std=True),
            AdvantageSpec(name="dr-grpo"),
            AdvantageSpec(name="rloo"),
            AdvantageSpec(name="maxrl"),
        ]
    ),
)
def test_every_advantage_is_that_of_its_formula(rewards: list[float], spec: AdvantageSpec) -> None:
    assert ours.advantages(rewards, spec) == pytest.approx(formulas.advantages(rewards, spec), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    ("key", "spec", "aggregation"),
    [
        ("tis", LossSpec(name="tis", ratio_cap=2.0), "token_mean"),
        ("ppo-clip token_mean", LossSpec(name="ppo-clip", low=0.2, high=0.28), "token_mean"),
        ("ppo-clip sequence_mean", LossSpec(name="ppo-clip", low=0.2, high=0.28), "sequence_mean"),
        (
            "ppo-clip seq_mean_token_sum_norm",
            LossSpec(name="ppo-clip", low=0.2, high=0.28),
            "seq_mean_token_sum_norm",
        ),
        ("mis", LossSpec(name="mis", low=0.5, high=1.0), "sequence_mean"),
    ],
)
def test_gradients_equal_those_of_trl(key: str, spec: LossSpec, aggregation: AggregationName) -> None:
    logprobs = torch.tensor(GOLDEN["logprobs"], dtype=torch.float64, requires_grad=True)
    loss = masked_mean(policy_loss(*flat_inputs(logprobs), spec).loss, aggregation)
    found, expected = gradient(loss, logprobs), torch.tensor(TRL["results"][key]["gradient"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert expected.count_nonzero() > len(GOLDEN["mask"])
    if key != "mis":  # whose value TRL takes from a ratio of 1
        assert loss.item() == pytest.approx(TRL["results"][key]["loss"], abs=1e-12)


def test_the_kl_penalty_equals_that_of_trl() -> None:
    logprobs = torch.tensor(GOLDEN["logprobs"], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor(TRL["reference_logprobs"], dtype=torch.float64)
    mask = torch.tensor(GOLDEN["mask"], dtype=torch.bool)
    clipped = policy_loss(*flat_inputs(logprobs), LossSpec(name="ppo-clip", low=0.2, high=0.28)).loss
    kl = kl_penalty(logprobs.flatten(), reference.flatten(), mask.flatten(), "k3")
    loss = masked_mean(clipped + 0.1 * kl, "sequence_mean")
    assert loss.item() == pytest.approx(TRL["results"]["k3"]["loss"], abs=1e-12)
    expected = torch.tensor(TRL["results"]["k3"]["gradient"], dtype=torch.float64)
    torch.testing.assert_close(gradient(loss, logprobs), expected, rtol=1e-9, atol=1e-12)


def flat_inputs(logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The stored batch as `policy_loss` takes it."""
    rollout = torch.tensor(GOLDEN["rollout_logprobs"], dtype=torch.float64)
    advantages = torch.tensor(GOLDEN["advantages"]["grpo-std"], dtype=torch.float64)
    mask = torch.tensor(GOLDEN["mask"], dtype=torch.bool)
    return logprobs.flatten(), rollout.flatten(), advantages.repeat_interleave(5), mask.flatten()


def masked_mean(token_losses: Tensor, aggregation: AggregationName) -> Tensor:
    """Token losses of the stored batch, aggregated; L is 50."""
    counts = torch.tensor(GOLDEN["mask"]).sum(1).tolist()
    weights = token_weights([counts[:3], counts[3:]], aggregation, max_tokens=50)
    per_row = torch.tensor([w for group in weights for w in group], dtype=torch.float64)
    return (per_row.repeat_interleave(5) * token_losses).sum()


def gradient(loss: Tensor, by: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, by)
    return found
