import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AlgorithmSpec, FilterSpec, PenaltySpec
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.algorithms.credit import assign_credit
from seatrial_trainer.algorithms.filters import LeftOut
from seatrial_trainer.algorithms.penalties import penalised_rewards
from tests.trajectories import make_trajectory

LIMITS = [Outcome.CONTEXT_EXCEEDED, Outcome.TURN_TOO_LONG, Outcome.STEPS_EXHAUSTED]


def group(*rewards: float) -> list[Trajectory]:
    return [make_trajectory(f"g/{i}", reward=reward) for i, reward in enumerate(rewards)]


def test_each_failed_tool_call_costs_the_same() -> None:
    trials = [make_trajectory(reward=1.0, failed_calls=3), make_trajectory(reward=0.3, failed_calls=0)]
    assert penalised_rewards(trials, PenaltySpec(failed_tool_call=0.05)) == pytest.approx([0.85, 0.3])


@pytest.mark.parametrize("outcome", LIMITS)
def test_ending_by_a_limit_costs_the_overlong_penalty(outcome: Outcome) -> None:
    trials = [make_trajectory(reward=0.4, outcome=outcome), make_trajectory(reward=0.4)]
    assert penalised_rewards(trials, PenaltySpec(overlong=0.1)) == pytest.approx([0.3, 0.4])


def test_running_out_of_time_is_not_overlong() -> None:
    trials = [make_trajectory(reward=0.4, outcome=Outcome.TIME_EXHAUSTED)]
    assert penalised_rewards(trials, PenaltySpec(overlong=0.1)) == [0.4]


def test_length_costs_solved_trials_in_proportion_between_the_groups_shortest_and_longest() -> None:
    trials = [make_trajectory(reward=1.0, sampled=n) for n in (10, 20, 30)] + [make_trajectory(reward=0.9, sampled=50)]
    assert penalised_rewards(trials, PenaltySpec(length=0.4)) == pytest.approx([1.0, 0.9, 0.8, 0.9])


def test_trials_of_equal_length_pay_nothing_for_it() -> None:
    assert penalised_rewards(group(1.0, 1.0), PenaltySpec(length=0.4)) == [1.0, 1.0]


def test_an_infrastructure_failure_has_no_credit_and_changes_no_other() -> None:
    alone = assign_credit(group(1.0, 0.2, 0.0), AlgorithmSpec())
    broken = make_trajectory("g/9", outcome=Outcome.SANDBOX_FAILED)
    for position in range(4):
        trials = group(1.0, 0.2, 0.0)
        trials.insert(position, broken)
        assert [c.advantage for c in assign_credit(trials, AlgorithmSpec())] == [c.advantage for c in alone]


def test_a_group_of_failures_alone_has_no_credit() -> None:
    assert assign_credit([make_trajectory(outcome=Outcome.ENGINE_FAILED)], AlgorithmSpec()) == []


def test_a_group_with_equal_rewards_is_left_out() -> None:
    credits_ = assign_credit(group(0.5, 0.5 + 1e-7), AlgorithmSpec())
    assert [credit.left_out for credit in credits_] == [LeftOut.ZERO_VARIANCE] * 2


def test_penalties_can_make_equal_rewards_unequal() -> None:
    algorithm = AlgorithmSpec(penalties=PenaltySpec(failed_tool_call=0.1))
    credits_ = assign_credit([make_trajectory(failed_calls=1), make_trajectory()], algorithm)
    assert [credit.left_out for credit in credits_] == [None, None]
    assert [credit.advantage for credit in credits_] == pytest.approx([-0.05, 0.05])


@pytest.mark.parametrize("outcome", LIMITS)
def test_an_overlong_trial_is_left_out_of_the_loss_but_stays_in_the_statistics(outcome: Outcome) -> None:
    trials = [*group(1.0, 0.5), make_trajectory("g/2", reward=0.0, outcome=outcome)]
    credits_ = assign_credit(trials, AlgorithmSpec(filters=FilterSpec(overlong=True)))
    assert [credit.left_out for credit in credits_] == [None, None, LeftOut.OVERLONG]
    assert [credit.advantage for credit in credits_] == pytest.approx([0.5, 0.0, -0.5])


def test_a_trial_in_which_nothing_was_sampled_counts_in_the_statistics_only() -> None:
    empty = make_trajectory("g/1", reward=0.0, sampled=0, outcome=Outcome.CONTEXT_EXCEEDED)
    credits_ = assign_credit([*group(1.0), empty], AlgorithmSpec())
    assert [credit.left_out for credit in credits_] == [None, LeftOut.NOTHING_SAMPLED]
    assert credits_[0].advantage == pytest.approx(0.5)
