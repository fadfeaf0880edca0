"""A whole batch, from trajectories through packs to gradients, against loops over trials and tokens."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AdvantageSpec, AlgorithmSpec, FilterSpec, KLSpec, LossSpec, PenaltySpec
from seatrial_api.spec.data import Domain
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.minibatch import build_minibatches
from seatrial_trainer.policy.packing import plan_padded, plan_shared
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.step_totals import StepTotals
from seatrial_trainer.policy.token_loss import weighted_loss
from seatrial_trainer.policy.token_tensors import TokenTensors, predicted_tokens
from tests.trajectories import make_trajectory
from tests.unit.algorithms import formulas

MAX_TOKENS = 40
INFRASTRUCTURE = [outcome for outcome in Outcome if outcome.is_infrastructure and outcome is not Outcome.CANCELLED]
GRADED = [outcome for outcome in Outcome if not outcome.is_infrastructure]
LOG_RATIOS = (-1.2, -0.6, -0.05, 0.0, 0.04, 0.3, 1.1, 2.0)
"""Of trainer against rollout, none of them near a bound of the losses below."""
BUDGETS = st.integers(1, 60)

batches = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
losses = st.builds(
    LossSpec, name=st.sampled_from(["dppo", "glm5", "ppo-clip", "tis", "mis"]), low=st.just(0.15), high=st.just(0.21)
)
advantages = st.sampled_from(
    [
        AdvantageSpec(name="grpo"),
        AdvantageSpec(name="grpo", normalize_std=True),
        AdvantageSpec(name="dr-grpo"),
        AdvantageSpec(name="rloo"),
        AdvantageSpec(name="maxrl"),
    ]
)
penalties = st.builds(
    PenaltySpec,
    failed_tool_call=st.sampled_from([0.0, 0.1]),
    length=st.sampled_from([0.0, 0.2]),
    overlong=st.sampled_from([0.0, 0.3]),
)
algorithms = st.builds(
    lambda advantage, penalties, **others: AlgorithmSpec(
        advantage=advantage, penalties=PenaltySpec() if advantage.name == "maxrl" else penalties, **others
    ),
    loss=losses,
    advantage=advantages,
    aggregation=st.sampled_from(["token_mean", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean"]),
    filters=st.builds(FilterSpec, zero_variance=st.booleans(), overlong=st.booleans()),
    penalties=penalties,
    kl=st.builds(KLSpec, coefficient=st.sampled_from([0.0, 0.05]), estimator=st.sampled_from(["k1", "k2", "k3"])),
)
trials = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from([*GRADED, *GRADED, *INFRASTRUCTURE]),
        "reward": st.sampled_from([0.0, 0.25, 0.6, 1.0]),
        "sampled": st.integers(0, 6),
        "failed_calls": st.integers(0, 2),
        "cut": st.integers(1, 5),
    }
)
groups_strategy = st.lists(st.lists(trials, min_size=1, max_size=4), min_size=1, max_size=3)


@cache
def logp_of(token: int) -> float:
    """Log p of a token: any function of its identity, so that the same token has it in every packing."""
    return -0.2 - random.Random(token).random() * 3  # noqa: S311  a test's numbers


@cache
def log_mu_of(token: int) -> float:
    return min(-1e-3, logp_of(token) - random.Random(-token).choice(LOG_RATIOS))  # noqa: S311  a test's numbers


@cache
def log_reference_of(token: int) -> float:
    return logp_of(token) - random.Random(token + 10**6).uniform(-0.5, 0.5)  # noqa: S311  a test's numbers


def make_groups(drawn: Sequence[Sequence[dict[str, Any]]]) -> list[list[Trajectory]]:
    """Trajectories in which every sampled token has an identity of its own; some in two sequences."""
    groups = []
    for g, group in enumerate(drawn):
        made = []
        for t, fields in enumerate(group):
            trial = make_trajectory(f"g{g}/{t}", **{key: fields[key] for key in ("outcome", "reward", "failed_calls")})
            first = 1_000 * (10 * g + t) + 100
            ids = list(range(first, first + fields["sampled"]))
            made.append(trial.model_copy(update={"sequences": sequences_of(g, ids, cut=fields["cut"])}))
        groups.append(made)
    return groups


def sequences_of(group: int, ids: list[int], *, cut: int) -> list[TokenSequence]:
    """One sequence, or two of which the second inherits what the first sampled before the cut."""
    prompt = [group + 1, 2, 3]
    if cut >= len(ids):
        return [sequence(prompt, ids)]
    return [sequence(prompt, ids[:cut]), sequence([*prompt, *ids[:cut], 7], ids[cut:])]


def sequence(given_ids: list[int], sampled: list[int]) -> TokenSequence:
    return TokenSequence(
        token_ids=given_ids + sampled,
        loss_mask=[0] * len(given_ids) + [1] * len(sampled),
        logprobs=[0.0] * len(given_ids) + [log_mu_of(token) for token in sampled],
        weight_versions=[-1] * len(given_ids) + [0] * len(sampled),
    )


def reference_of(one: TrainingSequence) -> list[float]:
    """What a backend asks the reference policy for."""
    return [
        log_reference_of(token) if is_in else math.nan
        for token, is_in in zip(one.token_ids, one.loss_mask, strict=True)
    ]


def gradients(minibatches: list[Minibatch], *, budget: int = 1_000, is_padded: bool = False) -> dict[int, float]:
    """Derivative of the loss by each sampled token's log p, through packs as a backend makes them."""
    found: dict[int, float] = defaultdict(float)
    for minibatch in minibatches:
        plan = plan_padded if is_padded else plan_shared
        sequences = [
            replace(one, reference_logprobs=reference_of(one)) if one.kl_coefficient > 0 else one
            for one in minibatch.sequences
        ]
        predicted = [predicted_tokens(one) for one in sequences]
        for pack in plan([one.token_ids for one in sequences], budget):
            targets = torch.tensor(
                [sequences[m.sequence].token_ids[i] for m in pack.members for i in predicted[m.sequence]]
            )
            logprobs = torch.tensor([logp_of(int(token)) for token in targets], dtype=torch.float64, requires_grad=True)
            known = TokenTensors.of_pack(pack, sequences, predicted, targets)
            totals = StepTotals(torch.device("cpu"))
            loss = weighted_loss(known, logprobs, torch.zeros_like(logprobs), minibatch, totals)
            (by_token,) = torch.autograd.grad(loss, logprobs)
            for token, value in zip(targets.tolist(), by_token.tolist(), strict=True):
                found[token] += value
    return dict(found)


def by_hand(
    groups: list[list[Trajectory]], algorithm: AlgorithmSpec, coefficients: list[float | None]
) -> dict[int, float]:
    """The same by the formulas.

    Args:
        groups: Trajectories by group.
        algorithm: The rules.
        coefficients: Of the KL by group, none where the algorithm's holds.
    """
    leaves: dict[int, torch.Tensor] = {}

    def loss_of(token: int, log_mu: float, advantage: float) -> torch.Tensor:
        leaf = leaves[token] = torch.tensor(logp_of(token), dtype=torch.float64, requires_grad=True)
        kl = formulas.kl_gradient(leaf.item(), log_reference_of(token), algorithm.kl.estimator) * leaf
        own = coefficients[token // 10_000]
        coefficient = algorithm.kl.coefficient if own is None else own
        return formulas.token_loss(leaf, log_mu, advantage, algorithm.loss) + coefficient * kl

    loss = formulas.batch_loss(groups, algorithm, MAX_TOKENS, loss_of)
    if not leaves:
        return {}
    return {token: g.item() for token, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)}


def close_to(values: dict[int, float]) -> Any:
    """Equal but for what 32 bits round off: packs hold log mu and weights in them."""
    return pytest.approx(values, rel=2e-5, abs=1e-7)


def ours(
    groups: list[list[Trajectory]], algorithm: AlgorithmSpec, domains: Sequence[Domain] = (), **packing: Any
) -> dict[int, float]:
    return gradients(build_minibatches(groups, algorithm, list(domains), max_tokens=MAX_TOKENS), **packing)


@batches
@given(
    drawn=groups_strategy,
    algorithm=algorithms,
    coefficients=st.lists(st.sampled_from([None, 0.0, 0.3]), min_size=3, max_size=3),
    budget=BUDGETS,
    is_padded=st.booleans(),
)
def test_the_gradient_of_a_whole_batch_is_that_of_the_formulas(
    drawn: list[list[dict[str, Any]]],
    algorithm: AlgorithmSpec,
    coefficients: list[float | None],
    budget: int,
    *,
    is_padded: bool,
) -> None:
    groups = [
        [one.model_copy(update={"domain": f"domain-{number}"}) for one in group]
        for number, group in enumerate(make_groups(drawn))
    ]
    domains = [Domain(name=f"domain-{number}", kl_coefficient=own) for number, own in enumerate(coefficients)]
    found = ours(groups, algorithm, domains, budget=budget, is_padded=is_padded)
    assert found == close_to(by_hand(groups, algorithm, coefficients))


@batches
@given(drawn=groups_strategy, algorithm=algorithms, budget=BUDGETS, rng=st.randoms(use_true_random=False))
def test_neither_order_nor_packing_nor_splitting_into_sequences_matters(
    drawn: list[list[dict[str, Any]]], algorithm: AlgorithmSpec, budget: int, rng: random.Random
) -> None:
    whole = make_groups([[{**trial, "cut": 99} for trial in group] for group in drawn])
    shuffled = [
        [
            one.model_copy(update={"sequences": rng.sample(one.sequences, len(one.sequences))})
            for one in rng.sample(group, len(group))
        ]
        for group in make_groups(drawn)
    ]
    rng.shuffle(shuffled)
    assert ours(shuffled, algorithm, budget=budget) == close_to(ours(whole, algorithm))


@batches
@given(
    drawn=groups_strategy,
    algorithm=algorithms,
    failures=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.sampled_from(INFRASTRUCTURE)), min_size=1, max_size=4
    ),
)
def test_an_infrastructure_failure_changes_nothing_of_any_other_trajectory(
    drawn: list[list[dict[str, Any]]], algorithm: AlgorithmSpec, failures: list[tuple[int, int, Outcome]]
) -> None:
    groups = make_groups(drawn)
    expected = build_minibatches(groups, algorithm, [], max_tokens=MAX_TOKENS)
    for number, (group, place, outcome) in enumerate(failures):
        broken = make_trajectory(f"g{group}/f{number}", outcome=outcome, sampled=5, failed_calls=2)
        groups[group % len(groups)].insert(place, broken)
    assert build_minibatches(groups, algorithm, [], max_tokens=MAX_TOKENS) == expected


@batches
@given(
    drawn=groups_strategy,
    algorithm=algorithms,
    poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]),
)
def test_what_stands_outside_the_mask_never_matters(
    drawn: list[list[dict[str, Any]]], algorithm: AlgorithmSpec, poison: float
) -> None:
    clean = make_groups(drawn)
    dirty = [
        [one.model_copy(update={"sequences": [poisoned(s, poison) for s in one.sequences]}) for one in group]
        for group in clean
    ]
    assert ours(dirty, algorithm) == ours(clean, algorithm)


def test_the_kl_that_is_told_is_of_tokens_that_pay_for_it() -> None:
    two = torch.ones(2)
    tokens = TokenTensors(
        targets=torch.zeros(2, dtype=torch.long),
        rollout_logprobs=-two,
        advantages=two,
        weights=two / 2,
        kl_coefficients=torch.tensor([0.3, 0.0]),
        is_fresh=two,
        reference_logprobs=torch.tensor([-1.5, -9.0]),
    )
    totals = StepTotals(torch.device("cpu"))
    weighted_loss(tokens, -two, two, Minibatch([], LossSpec(), "k2"), totals)
    assert totals.stats(Ranks(), seconds=0.0).kl_to_reference == pytest.approx(0.5**2 / 2 / 2)


def poisoned(one: TokenSequence, poison: float) -> TokenSequence:
    logprobs = [known if is_in else poison for known, is_in in zip(one.logprobs, one.loss_mask, strict=True)]
    return one.model_copy(
        update={
            "logprobs": logprobs,
            "weight_versions": [v if m else 99 for v, m in zip(one.weight_versions, one.loss_mask, strict=True)],
        }
    )
