import random

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.evaluation.comparison import compare_arms, conclusion
from tests.trajectories import make_trajectory


def tries(rates: list[float], *, passes: int = 4, seed: int = 0) -> list[Trajectory]:
    """Tries at tasks that are solved with these chances."""
    rng = random.Random(seed)  # noqa: S311  reproducible
    return [
        make_trajectory(f"{task:02d}-t{p:02d}-a1", task=f"task-{task}", reward=float(rng.random() < rate))
        for task, rate in enumerate(rates)
        for p in range(passes)
    ]


def test_a_real_difference_has_a_name_and_noise_is_a_tie() -> None:
    rates = [0.1, 0.3, 0.5, 0.7] * 10
    arms = {
        "first": tries(rates),
        "same": tries(rates, seed=1),
        "better": tries([rate + 0.25 for rate in rates], seed=2),
        "worse": tries([rate / 3 for rate in rates], seed=3),
    }
    results = compare_arms(arms)
    assert [one.verdict for one in results] == ["Baseline", "Tie", "Better", "Worse"]
    assert all(
        one.gain.low <= one.gain.mean <= one.gain.high and one.gain.count == 40 for one in results[1:] if one.gain
    )
    sentence = conclusion(results)
    assert sentence.index("better (") < sentence.index("worse (") < sentence.index("same (")
    assert sentence.endswith("is within noise of first")


def test_pairing_by_task_finds_what_the_spread_over_tasks_would_hide() -> None:
    hard_and_easy = [make_trajectory(f"{n}-t00-a1", task=f"task-{n}", reward=n % 2) for n in range(40)]
    raised = [one.model_copy(update={"reward": 1.0}) if n % 8 == 0 else one for n, one in enumerate(hard_and_easy)]
    _, other = compare_arms({"first": hard_and_easy, "other": raised})
    assert other.verdict == "Better"
    assert other.gain is not None
    assert other.gain.mean == pytest.approx(5 / 40)


def test_a_pass_holds_one_try_of_each_task_and_failures_are_in_none() -> None:
    solved = [(1.0, 0.0), (1.0, 1.0)]
    graded = [
        make_trajectory(f"{task}-t{p:02d}-a1", task=f"task-{task}", reward=reward)
        for task, results in enumerate(solved)
        for p, reward in enumerate(results)
    ]
    failed = make_trajectory("0-t00-a0", task="task-0", outcome=Outcome.SANDBOX_FAILED)
    (only,) = compare_arms({"only": [failed, *graded]})
    assert only.pass_at_1.mean == 0.75
    assert only.pass_at_1.std == pytest.approx(0.5 / 2**0.5)
    assert only.pass_at_1.num_passes == 2


def test_arms_that_share_no_task_are_not_compared() -> None:
    _, other = compare_arms({"a": tries([0.5]), "b": [make_trajectory("x-t00-a1", task="another")]})
    assert other.gain is None
    assert "not comparable" in conclusion(compare_arms({"a": tries([0.5]), "b": [make_trajectory(task="another")]}))
