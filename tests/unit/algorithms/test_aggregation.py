import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.spec.algorithm import AggregationName
from seatrial_trainer.algorithms.aggregation import token_weights

COUNTS = [[2, 3], [5]]
NAMES: tuple[AggregationName, ...] = ("token_mean", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean")

counts_strategy = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=5), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [0.1, 0.1, 0.1]),
        ("sequence_mean", [1 / 6, 1 / 9, 1 / 15]),
        ("seq_mean_token_sum_norm", [1 / 24, 1 / 24, 1 / 24]),
        ("prompt_mean", [0.1, 0.1, 0.1]),
    ],
)
def test_weights_are_what_the_rule_says(aggregation: AggregationName, expected: list[float]) -> None:
    weights = token_weights(COUNTS, aggregation, max_tokens=8)
    assert [w for group in weights for w in group] == pytest.approx(expected)


def test_prompt_mean_gives_each_prompt_the_same_however_much_it_sampled() -> None:
    weights = token_weights([[1, 1], [100]], "prompt_mean")
    assert weights == [[0.25, 0.25], [0.005]]


@given(counts=counts_strategy, aggregation=st.sampled_from(["token_mean", "sequence_mean", "prompt_mean"]))
def test_means_sum_to_one_over_all_sampled_tokens(counts: list[list[int]], aggregation: AggregationName) -> None:
    weights = token_weights(counts, aggregation)
    total = sum(w * n for ws, ns in zip(weights, counts, strict=True) for w, n in zip(ws, ns, strict=True))
    assert total == pytest.approx(1.0)


@given(counts=counts_strategy, aggregation=st.sampled_from(NAMES))
def test_a_group_of_which_nothing_is_trained_changes_no_weight(
    counts: list[list[int]], aggregation: AggregationName
) -> None:
    assert token_weights([*counts, []], aggregation) == [*token_weights(counts, aggregation), []]


def test_without_a_constant_the_longest_trajectory_is_the_norm() -> None:
    assert token_weights(COUNTS, "seq_mean_token_sum_norm") == [[1 / 15] * 2, [1 / 15]]
