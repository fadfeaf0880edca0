import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.algorithm import AdvantageSpec
from seatrial_trainer.algorithms.advantages import advantages
from tests.unit.algorithms.golden import GOLDEN

SPECS = [
    AdvantageSpec(name="grpo"),
    AdvantageSpec(name="grpo", normalize_std=True),
    AdvantageSpec(name="dr-grpo"),
    AdvantageSpec(name="rloo"),
    AdvantageSpec(name="maxrl"),
]
REWARDS = [1.0, 0.0, 0.5, 0.1]
"""Mean 0.4, sum of squared deviations 0.62."""

rewards_strategy = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("spec", "expected"),
    list(
        zip(
            SPECS,
            [
                [0.6, -0.4, 0.1, -0.3],
                [a / (math.sqrt(0.62 / 3) + 1e-6) for a in (0.6, -0.4, 0.1, -0.3)],
                [0.6, -0.4, 0.1, -0.3],
                [0.8, -0.4 * 4 / 3, 0.4 / 3, -0.4],
                [a / (0.4 + 1e-6) for a in (0.6, -0.4, 0.1, -0.3)],
            ],
            strict=True,
        )
    ),
)
def test_an_advantage_is_what_its_formula_says(spec: AdvantageSpec, expected: list[float]) -> None:
    assert advantages(REWARDS, spec) == pytest.approx(expected, abs=1e-12)


def test_rloo_compares_each_reward_with_the_mean_of_the_others() -> None:
    values = advantages(REWARDS, AdvantageSpec(name="rloo"))
    for i, value in enumerate(values):
        others = REWARDS[:i] + REWARDS[i + 1 :]
        assert value == pytest.approx(REWARDS[i] - sum(others) / len(others))


@pytest.mark.parametrize("spec", SPECS)
def test_a_group_of_one_has_no_advantage(spec: AdvantageSpec) -> None:
    assert advantages([0.7], spec) == [0.0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_have_no_advantage(spec: AdvantageSpec, reward: float) -> None:
    assert advantages([reward] * 4, spec) == [0.0] * 4


@given(rewards=rewards_strategy, spec=st.sampled_from(SPECS))
def test_advantages_of_a_group_cancel_out(rewards: list[float], spec: AdvantageSpec) -> None:
    values = advantages(rewards, spec)
    assert sum(values) == pytest.approx(0.0, abs=1e-9 * max(1.0, *map(abs, values)))


@pytest.mark.parametrize("spec", SPECS)
def test_the_order_of_trials_moves_advantages_along_with_them(spec: AdvantageSpec) -> None:
    by_reward = dict(zip(REWARDS, advantages(REWARDS, spec), strict=True))
    for order in permutations(REWARDS):
        assert advantages(order, spec) == pytest.approx([by_reward[reward] for reward in order])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(InvalidInputError, match="finite"):
        advantages([1.0, reward], AdvantageSpec())


def test_maxrl_refuses_a_negative_reward_and_says_which() -> None:
    with pytest.raises(InvalidInputError, match=r"maxrl needs rewards of at least 0, but one is -0\.2"):
        advantages([1.0, -0.2], AdvantageSpec(name="maxrl"))


@pytest.mark.parametrize(
    ("key", "spec"), [("grpo", SPECS[0]), ("grpo-std", SPECS[1]), ("rloo", SPECS[3]), ("maxrl", SPECS[4])]
)
def test_advantages_equal_those_of_skyrl(key: str, spec: AdvantageSpec) -> None:
    rewards = GOLDEN["rewards"]
    ours = advantages(rewards[:3], spec) + advantages(rewards[3:], spec)
    assert ours == pytest.approx(GOLDEN["advantages"][key], abs=1e-12)
