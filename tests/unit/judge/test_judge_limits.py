"""Windows, breakers, keys in turn and budgets: pure bookkeeping."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.judge import JudgeBudget, JudgeKey, JudgeModel, JudgeProvider, JudgeSpec
from seatrial_rollout.judge.budget import Ledger, Usage
from seatrial_rollout.judge.cache import Cache, question_hash
from seatrial_rollout.judge.errors import OverBudgetError
from seatrial_rollout.judge.keys import Key, Ring, make_rings, read_keys
from seatrial_rollout.judge.limits import Breaker, Window
from tests.judge_provider import environment, provider


def test_a_window_counts_from_the_answer_so_that_no_window_of_the_provider_holds_more() -> None:
    window = Window(2, 10.0)
    window.begin(1)
    window.begin(1)
    assert window.ready_at(1, now=0.0) is None
    window.end(1, 1, now=4.0)
    assert window.ready_at(1, now=5.0) == 14.0
    assert window.ready_at(1, now=14.0) == 14.0


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5)), min_size=1, max_size=60), st.integers(1, 5))
def test_wherever_a_request_arrives_on_its_way_no_window_holds_more_than_the_limit(
    steps: list[tuple[float, float]], limit: int
) -> None:
    """Each step: how long before the next request is wanted, and how long the one before takes to be answered."""
    window, now, arrivals = Window(limit, 10.0), 0.0, []
    for pause, latency in steps:
        now += pause
        ready_at = window.ready_at(1, now)
        assert ready_at is not None, "nothing is under way"
        now = max(now, ready_at)
        window.begin(1)
        arrivals.append(now + (latency if len(arrivals) % 2 else 0.0))  # at once, or in the last moment
        now += latency
        window.end(1, 1, now)
    windows = zip(arrivals, arrivals[limit:], strict=False)
    assert all(later - first >= 10.0 - 1e-9 for first, later in windows)
    assert all(first <= later for first, later in pairwise(arrivals))


def test_what_was_expected_to_be_long_and_was_short_makes_room() -> None:
    window = Window(100, 10.0)
    window.begin(90)
    assert window.ready_at(20, now=0.0) is None
    window.end(90, 30, now=1.0)
    assert window.ready_at(70, now=1.0) == 1.0


def test_what_is_larger_than_the_window_goes_alone() -> None:
    window = Window(100, 10.0)
    assert window.ready_at(500, now=0.0) == 0.0
    window.begin(500)
    assert window.ready_at(1, now=0.0) is None


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    breaker = Breaker(threshold=2, first_seconds=5.0)
    breaker.fail(0.0)
    breaker.succeed()
    breaker.fail(1.0)
    assert breaker.is_closed
    breaker.fail(2.0)
    assert breaker.ready_at(2.0) == 7.0
    assert breaker.ready_at(7.0) == 7.0
    breaker.begin()
    assert breaker.ready_at(7.0) is None
    breaker.fail(8.0)
    assert breaker.ready_at(8.0) == 18.0
    breaker.begin()
    breaker.succeed()
    assert breaker.ready_at(18.0) == 18.0


def test_failures_of_what_was_sent_before_do_not_lengthen_an_open_breaker() -> None:
    breaker = Breaker(threshold=1, first_seconds=5.0)
    breaker.fail(0.0)
    breaker.fail(4.0)
    assert breaker.ready_at(4.0) == 5.0


def test_a_probe_that_was_given_up_leaves_room_for_another() -> None:
    breaker = Breaker(threshold=1, first_seconds=5.0)
    breaker.fail(0.0)
    breaker.begin()
    breaker.give_up()
    assert breaker.ready_at(6.0) == 6.0


def ring(num_keys: int, **limits: float) -> Ring:
    made = provider("http://x", num_keys=num_keys, **limits)
    breaker = Breaker()
    return Ring([Key(made, number, "secret", breaker) for number in range(num_keys)])


def test_keys_are_used_in_turn() -> None:
    keys = ring(3)
    taken = [keys.take(1, 0.0) for _ in range(6)]
    assert [key.number for key in taken if key] == [0, 1, 2, 0, 1, 2]


def test_a_key_at_its_limits_or_at_rest_is_passed_over() -> None:
    keys = ring(3, concurrency=1)
    keys.keys[1].resting_until = 9.0
    assert [key and key.number for key in (keys.take(1, 0.0), keys.take(1, 0.0), keys.take(1, 0.0))] == [0, 2, None]
    assert keys.ready_at(1, 0.0) == 9.0


def test_a_key_is_never_shown() -> None:
    made = provider("http://x")
    (key,) = make_rings(JudgeSpec(providers=[made], model="judge"), {"FAKE_KEY_0": "sk-1"})["judge"].keys
    assert "sk-1" not in repr(key)


def test_models_of_one_name_share_the_keys_of_all_who_serve_them() -> None:
    both = JudgeProvider(
        name="both",
        base_url="http://x",
        keys=[JudgeKey(env="A")],
        models=[JudgeModel(name="judge"), JudgeModel(name="other")],
    )
    one = provider("http://y", num_keys=2)
    rings = make_rings(JudgeSpec(providers=[both, one], model="judge"), environment(both, one))
    assert [key.label for key in rings["judge"].keys] == ["both/0", "fake/0", "fake/1"]
    assert rings["other"].keys == [rings["judge"].keys[0]]


def test_keys_that_are_not_set_are_named() -> None:
    made = provider("http://x", num_keys=2)
    with pytest.raises(InvalidInputError, match="set FAKE_KEY_1 in"):
        read_keys(JudgeSpec(providers=[made], model="judge"), {"FAKE_KEY_0": "x", "FAKE_KEY_1": ""})


def test_a_budget_counts_what_is_under_way_as_expected_and_what_ended_as_it_was() -> None:
    ledger, budget, expected = Ledger(JudgeBudget()), JudgeBudget(tokens=100), Usage(1, 40, 20, 0.0)
    with ledger.reserved("a", budget, expected) as first:
        with pytest.raises(
            OverBudgetError, match=r"the trial has used 60 of 100 tokens; raise judge\.trialBudget\.tokens"
        ):
            ledger.reserved("a", budget, expected).__enter__()
        with ledger.reserved("b", budget, expected):
            pass
        first.usage = Usage(1, 30, 5, 0.0)
    with ledger.reserved("a", budget, expected):
        pass
    assert (ledger.verifications["a"].used.tokens, ledger.run.used.tokens, ledger.run.reserved.tokens) == (35, 35, 0)


@pytest.mark.parametrize(
    ("budget", "kind"), [(JudgeBudget(requests=1), "requests"), (JudgeBudget(dollars=0.05), "dollars")]
)
def test_the_run_has_a_budget_over_all_its_trials(budget: JudgeBudget, kind: str) -> None:
    ledger = Ledger(budget)
    usage = Usage.priced(JudgeModel(name="m", prompt_million_tokens=1.0, completion_million_tokens=4.0), 10_000, 5_000)
    assert usage.dollars == pytest.approx(0.03)
    with ledger.reserved("a", JudgeBudget(), usage) as reservation:
        reservation.usage = usage
    with pytest.raises(OverBudgetError, match=rf"the run has used .* {kind}; raise judge.runBudget.{kind}"):
        ledger.reserved("b", JudgeBudget(), usage).__enter__()


def test_a_cache_forgets_what_was_longest_not_asked_for() -> None:
    cache: Cache[int] = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_questions_are_equal_by_content_alone() -> None:
    question = {"model": "m", "messages": [], "temperature": 1}
    assert question_hash(question) == question_hash({"temperature": 1, "user": "x", "messages": [], "model": "m"})
    assert question_hash(question) != question_hash({**question, "seed": 1})
