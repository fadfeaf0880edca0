"""From a batch of trials to the record of its step."""

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AlgorithmSpec, PenaltySpec
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.step_measuring import ErrorRates, StepTimes, TrialWindow, make_record
from seatrial_trainer.observability.step_record import StepRecord
from seatrial_trainer.scheduling.groups import Batch, FinishedGroup
from tests.trajectories import make_trajectory

TIMES = StepTimes(buffer_wait=1.0, train=2.0, sync=0.5, paused=0.1, step=4.0)


def record_of(groups: list[list[Trajectory]], algorithm: AlgorithmSpec) -> StepRecord:
    batch = Batch(0, tuple(FinishedGroup.from_spool(group, 0) for group in groups), wait_seconds=1.0, hold_seconds=0.0)
    return make_record(1, batch, algorithm, [], TIMES, ErrorRates(0.0, ()))


def test_a_group_whose_rewards_differ_by_a_penalty_alone_has_variance() -> None:
    careful, careless = make_trajectory("a/0"), make_trajectory("a/1", failed_calls=1)
    for penalty, flat in ((0.0, 1), (0.05, 0)):
        record = record_of([[careful, careless]], AlgorithmSpec(penalties=PenaltySpec(failed_tool_call=penalty)))
        assert record.zero_variance_groups == flat
        assert (record.reward_mean, record.pass_rate) == (1.0, 1.0), "penalties are no part of what was earned"


def test_rates_of_a_batch_are_over_its_valid_trials() -> None:
    solved = make_trajectory("a/0")
    tried = make_trajectory("a/1", reward=0.25, failed_calls=3)
    record = record_of([[solved, tried]], AlgorithmSpec())
    assert (record.groups, record.trials, record.zero_variance_groups) == (1, 2, 0)
    assert (record.reward_mean, record.pass_rate, record.tampering_rate) == (0.625, 0.5, 0.0)
    assert record.tool_failure_rate == pytest.approx(3 / 5)


def test_error_rates_are_told_by_length_once_there_are_enough_trials() -> None:
    window = TrialWindow()
    for number in range(16):
        outcome = Outcome.SANDBOX_FAILED if number in {12, 15} else Outcome.COMPLETED
        window.add(make_trajectory(f"a/{number}", sampled=number + 1, outcome=outcome))
    assert window.take() == ErrorRates(2 / 16, (0.0, 0.0, 0.0, 0.5))
    window.add(make_trajectory("a/16", outcome=Outcome.SANDBOX_FAILED))
    assert window.take() == ErrorRates(1.0, ())
