import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AggregationName, AlgorithmSpec, FilterSpec, KLSpec, PenaltySpec
from seatrial_api.spec.data import Domain
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_trainer.algorithms.credit import batch_statistics
from seatrial_trainer.algorithms.filters import LeftOut
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.minibatch import build_minibatches
from tests.trajectories import make_sequence, make_trajectory

AGGREGATIONS: tuple[AggregationName, ...] = (
    "token_mean",
    "sequence_mean",
    "seq_mean_token_sum_norm",
    "prompt_mean",
)


def group(name: str, *rewards: float, sampled: int = 4) -> list[Trajectory]:
    return [make_trajectory(f"{name}/{i}", reward=r, sampled=sampled) for i, r in enumerate(rewards)]


def token_coefficients(minibatch: Minibatch) -> list[tuple[int, float]]:
    """What each sampled token's log probability is multiplied with in an on-policy loss, in a canonical order."""
    return sorted(
        (token, round(sequence.weight * sequence.advantage, 12))
        for sequence in minibatch.sequences
        for token, mask in zip(sequence.token_ids, sequence.loss_mask, strict=True)
        if mask
    )


def test_sequences_carry_their_trajectorys_advantage_and_weight() -> None:
    (minibatch,) = build_minibatches([group("a", 1.0, 0.0), group("b", 0.2, 0.6, sampled=8)], AlgorithmSpec(), [])
    assert [s.advantage for s in minibatch.sequences] == pytest.approx([0.5, -0.5, -0.2, 0.2])
    assert [s.weight for s in minibatch.sequences] == [1 / 16, 1 / 16, 1 / 32, 1 / 32]
    first = group("a", 1.0)[0].sequences[0]
    assert minibatch.sequences[0] == TrainingSequence(
        first.token_ids,
        first.loss_mask,
        first.logprobs,
        advantage=0.5,
        weight=1 / 16,
        weight_versions=first.weight_versions,
    )


def test_only_the_first_optimiser_step_of_a_batch_sees_the_weights_that_sampled() -> None:
    groups = [group(name, 1.0, 0.0) for name in "ab"]
    minibatches = build_minibatches(groups, AlgorithmSpec(minibatch_size=1), [], version=7)
    assert [minibatch.fresh_version for minibatch in minibatches] == [7, None]


def test_groups_are_cut_into_minibatches_in_order() -> None:
    groups = [group(name, 1.0, 0.0) for name in "abc"]
    minibatches = build_minibatches(groups, AlgorithmSpec(minibatch_size=2), [])
    assert [len(minibatch.sequences) for minibatch in minibatches] == [4, 2]
    assert [s.weight for s in minibatches[1].sequences] == [1 / 8, 1 / 8]


def test_a_minibatch_of_which_nothing_is_left_is_not_made() -> None:
    groups = [group("a", 1.0, 1.0), group("b", 1.0, 0.0)]
    (minibatch,) = build_minibatches(groups, AlgorithmSpec(minibatch_size=1), [])
    assert [s.advantage for s in minibatch.sequences] == [0.5, -0.5]


def test_what_is_left_out_is_not_counted_in_the_denominators() -> None:
    informative = group("b", 1.0, 0.0)
    (alone,) = build_minibatches([informative], AlgorithmSpec(), [])
    (together,) = build_minibatches([group("a", 1.0, 1.0), informative], AlgorithmSpec(), [])
    assert together == alone


def test_with_the_filter_off_equal_rewards_take_their_share_of_the_mean() -> None:
    algorithm = AlgorithmSpec(filters=FilterSpec(zero_variance=False))
    (minibatch,) = build_minibatches([group("a", 1.0, 1.0), group("b", 1.0, 0.0)], algorithm, [])
    assert [(s.advantage, s.weight) for s in minibatch.sequences] == [
        (0.0, 1 / 16),
        (0.0, 1 / 16),
        (0.5, 1 / 16),
        (-0.5, 1 / 16),
    ]


def test_an_infrastructure_failure_is_passed_over() -> None:
    broken = make_trajectory("a/9", outcome=Outcome.TOOL_SERVER_FAILED)
    with_failure = build_minibatches([[broken, *group("a", 1.0, 0.0)]], AlgorithmSpec(), [])
    assert with_failure == build_minibatches([group("a", 1.0, 0.0)], AlgorithmSpec(), [])


def test_a_domain_has_its_own_kl_coefficient_if_it_names_one() -> None:
    algorithm = AlgorithmSpec(kl=KLSpec(coefficient=0.1, estimator="k2"))
    trials = [
        make_trajectory("a/0", reward=1.0),
        make_trajectory("a/1", reward=0.0).model_copy(update={"domain": "law"}),
    ]
    domains = [Domain(name="law", kl_coefficient=0.3), Domain(name="finance")]
    (minibatch,) = build_minibatches([trials], algorithm, domains)
    assert [s.kl_coefficient for s in minibatch.sequences] == [0.1, 0.3]
    assert minibatch.kl_estimator == "k2"


@given(
    aggregation=st.sampled_from(AGGREGATIONS),
    cuts=st.lists(st.integers(1, 7), min_size=4, max_size=4),
    order=st.permutations(range(4)),
)
def test_neither_splitting_a_trajectory_nor_order_changes_what_a_token_weighs(
    aggregation: AggregationName, cuts: list[int], order: list[int]
) -> None:
    algorithm = AlgorithmSpec(aggregation=aggregation)
    whole = [
        make_trajectory(f"g/{i}", reward=reward).model_copy(
            update={"sequences": [make_sequence([1, 2], list(range(10 * i, 10 * i + 8)))]}
        )
        for i, reward in enumerate([1.0, 0.0, 0.4, 0.1])
    ]
    split = [
        trial.model_copy(update={"sequences": branch(trial.sequences[0], cut)})
        for trial, cut in zip(whole, cuts, strict=True)
    ]
    (expected,) = build_minibatches([whole[:2], whole[2:]], algorithm, [])
    (found,) = build_minibatches(
        [[split[i] for i in order if i < 2], [split[i] for i in order if i >= 2]], algorithm, []
    )
    assert token_coefficients(found) == token_coefficients(expected)
    assert len(found.sequences) == 8


def branch(sequence: TokenSequence, cut: int) -> list[TokenSequence]:
    """The same sampled tokens in two sequences: the second inherits the first and has mask 1 on the rest only."""
    prompt, sampled = sequence.token_ids[:2], sequence.token_ids[2:]
    return [make_sequence(prompt, sampled[:cut]), make_sequence(prompt + sampled[:cut], sampled[cut:])]


def test_statistics_are_over_all_graded_trajectories_whatever_is_left_out() -> None:
    algorithm = AlgorithmSpec(
        penalties=PenaltySpec(failed_tool_call=0.1), filters=FilterSpec(zero_variance=True, overlong=True)
    )
    groups = [
        group("a", 1.0, 1.0),
        [
            make_trajectory("b/0", reward=0.8, failed_calls=2),
            make_trajectory("b/1", reward=0.0, outcome=Outcome.TURN_TOO_LONG),
            make_trajectory("b/2", outcome=Outcome.ENGINE_FAILED),
        ],
    ]
    statistics = batch_statistics(groups, algorithm)
    assert statistics.num_groups == 2
    assert statistics.num_graded == 4
    assert statistics.num_infrastructure_failures == 1
    assert statistics.num_trained == 1
    assert statistics.left_out == {LeftOut.ZERO_VARIANCE: 2, LeftOut.OVERLONG: 1}
    assert statistics.reward_mean == pytest.approx(0.7)
    assert statistics.penalty_mean == pytest.approx(0.05)
    assert statistics.advantage_abs_mean == pytest.approx(0.15)
    assert statistics.reward_mean_by_domain == {"finance": pytest.approx(0.7)}


def test_an_empty_batch_has_no_minibatch_and_zero_statistics() -> None:
    assert build_minibatches([], AlgorithmSpec(), []) == []
    assert batch_statistics([], AlgorithmSpec()).num_graded == 0
