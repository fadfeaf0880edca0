import pytest

from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_trainer.policy.schedule import learning_rate


def rates(num_steps: int, **fields: object) -> list[float]:
    spec = OptimizerSpec.model_validate({"learning_rate": 1.0, "min_learning_rate_fraction": 0.1, **fields})
    return [learning_rate(step, num_steps, spec) for step in range(num_steps)]


def test_without_warmup_the_first_batch_has_the_peak() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]


def test_the_warmup_rises_linearly_and_its_last_batch_has_the_peak() -> None:
    assert rates(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_in_equal_steps_to_the_floor_at_the_last_batch() -> None:
    assert rates(7, warmup_steps=2, schedule="Linear") == pytest.approx([0.5, 1.0, 0.82, 0.64, 0.46, 0.28, 0.1])


def test_cosine_is_halfway_in_the_middle_and_at_the_floor_in_the_last_batch() -> None:
    found = rates(5, schedule="Cosine")
    assert found == pytest.approx([1.0, 0.1 + 0.9 * (1 + 0.5**0.5) / 2, 0.55, 0.1 + 0.9 * (1 - 0.5**0.5) / 2, 0.1])


@pytest.mark.parametrize("schedule", ["Constant", "Linear", "Cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 3, 9])
def test_every_rate_lies_between_zero_and_the_peak(schedule: str, warmup: int) -> None:
    assert all(0 < rate <= 1 for rate in rates(3, schedule=schedule, warmup_steps=warmup))


@pytest.mark.parametrize("schedule", ["Linear", "Cosine"])
def test_a_step_past_the_last_stays_at_the_floor(schedule: str) -> None:
    spec = OptimizerSpec.model_validate({"learning_rate": 1.0, "schedule": schedule})
    assert learning_rate(50, 10, spec) == pytest.approx(0.1)


def test_a_stage_of_one_batch_trains_at_the_peak() -> None:
    assert rates(1, schedule="Linear") == [1.0]
