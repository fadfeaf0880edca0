import math

import pytest

from seatrial_api.spec.operations import GuardsSpec
from seatrial_trainer.driver.guards import check
from seatrial_trainer.observability.step_record import StepRecord
from tests.steps import make_step

ALL_OFF = GuardsSpec(max_logprob_diff=None, max_error_rate=None)


@pytest.mark.parametrize(
    ("guards", "field", "good", "bad"),
    [
        ({"max_logprob_diff": 0.1}, "fresh_logprob_abs_diff_mean", 0.1, 0.11),
        ({"max_mismatch_kl": 0.01}, "mismatch_kl", 0.01, 0.02),
        ({"max_entropy": 2.0}, "entropy", 2.0, 2.1),
        ({"min_entropy": 0.01}, "entropy", 0.01, 0.009),
        ({"max_error_rate": 0.05}, "error_rate", 0.05, 0.06),
    ],
)
def test_a_guard_fires_past_its_bound_and_not_at_it(
    guards: dict[str, float], field: str, good: float, bad: float
) -> None:
    spec = ALL_OFF.model_copy(update=guards)
    assert check(spec, [make_step(**{field: good})]) is None
    fired = check(spec, [make_step(**{field: bad})])
    assert fired is not None
    assert fired.value == bad
    assert fired.guard in str(fired)


@pytest.mark.parametrize("field", ["loss", "entropy", "mismatch_kl"])
def test_numbers_that_are_not_finite_always_fire(field: str) -> None:
    fired = check(ALL_OFF, [make_step(**{field: math.nan})])
    assert fired is not None
    assert fired.guard == "notFinite"


def test_a_silent_guard_does_not_fire() -> None:
    spec = ALL_OFF.model_copy(update={"max_entropy": 1.0})
    assert check(spec, [make_step(entropy=2.0)], silent=frozenset({"maxEntropy"})) is None


def test_a_logprob_difference_that_could_not_be_measured_does_not_fire() -> None:
    assert check(GuardsSpec(), [make_step(fresh_logprob_abs_diff_mean=None)]) is None


def test_errors_that_grow_with_length_fire_the_skew_guard() -> None:
    spec = ALL_OFF.model_copy(update={"max_length_skew": 3.0})
    even = make_step(error_rate_by_length_quartile=(0.01, 0.01, 0.01, 0.02))
    skewed = make_step(error_rate_by_length_quartile=(0.01, 0.01, 0.02, 0.05))
    assert check(spec, [even]) is None
    assert check(spec, [skewed]) is not None


def test_a_reward_jump_is_held_against_the_windows_spread() -> None:
    spec = ALL_OFF.model_copy(update={"max_reward_jump": 4.0, "window_steps": 3})
    calm = [make_step(reward_mean=reward) for reward in (0.50, 0.52, 0.48)]
    assert check(spec, [*calm, make_step(reward_mean=0.55)]) is None
    assert check(spec, [*calm, make_step(reward_mean=0.95)]) is not None
    assert check(spec, [*calm[:2], make_step(reward_mean=0.95)]) is None


HACKING = ALL_OFF.model_copy(update={"max_reward_hacking": 0.1, "window_steps": 2})


def steps_of(
    successes: list[float], tampering: list[float] | None = None, measure: str = "pass_rate"
) -> list[StepRecord]:
    columns = zip(successes, tampering or [0.0] * len(successes), strict=True)
    return [
        make_step(version=version, tampering_rate=tried, **{measure: success})
        for version, (success, tried) in enumerate(columns, start=1)
    ]


@pytest.mark.parametrize("measure", ["pass_rate", "reward_mean"])
@pytest.mark.parametrize(
    ("successes", "validations", "value"),
    [
        ([0.2, 0.2, 0.4, 0.4, 0.7, 0.7], {2: 0.3, 4: 0.4, 6: 0.25}, 0.15),  # training +0.3, validation -0.15
        ([0.2, 0.2, 0.4, 0.4, 0.7, 0.7], {2: 0.3, 4: 0.4, 6: 0.5}, None),  # both learn
        ([0.2, 0.2, 0.4, 0.4, 0.3, 0.3], {2: 0.3, 4: 0.4, 6: 0.1}, None),  # both fall: no hacking
        ([0.2, 0.2, 0.4, 0.4, 0.7, 0.7], {2: 0.3, 4: 0.4, 6: 0.35}, None),  # within the bound
        ([0.2, 0.2, 0.4, 0.4, 0.7, 0.7], {6: 0.1}, None),  # nothing to compare with
    ],
)
def test_training_that_rises_while_validation_falls_is_reward_hacking(
    successes: list[float], validations: dict[int, float], value: float | None, measure: str
) -> None:
    fired = check(HACKING, steps_of(successes, measure=measure), validations=validations)
    assert (fired and (fired.guard, pytest.approx(fired.value))) == (value and ("maxRewardHacking", value))


@pytest.mark.parametrize("measure", ["pass_rate", "reward_mean"])
def test_training_that_rises_with_tampering_is_reward_hacking(measure: str) -> None:
    rates = [0.2, 0.2, 0.3, 0.5, 0.6, 0.6]
    assert check(HACKING, steps_of(rates, [0.0] * 6, measure)) is None
    fired = check(HACKING, steps_of(rates, [0.0, 0.0, 0.1, 0.3, 0.4, 0.2], measure))
    assert fired is not None
    assert (fired.guard, fired.value) == ("maxRewardHacking", pytest.approx(0.3))


def test_scalars_flatten_nested_numbers_and_leave_out_what_was_not_measured() -> None:
    step: StepRecord = make_step(fresh_logprob_abs_diff_mean=None, rewards_by_domain={"finance": 0.5})
    scalars = step.scalars()
    assert scalars["rewards_by_domain/finance"] == 0.5
    assert "fresh_logprob_abs_diff_mean" not in scalars
