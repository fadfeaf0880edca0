"""The order of the queue."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from seatrial_operator.sandboxes.core.waiting import WaitingClaims


def served(queue: WaitingClaims, held: dict[str, int], count: int) -> list[str]:
    """Trials in the order in which they are served, each of which its run then holds."""
    shares: Counter[str] = Counter(held)
    order = []
    for _ in range(count):
        trial = queue.take(shares)
        assert trial is not None
        shares[trial.split("-")[0]] += 1
        order.append(trial)
    return order


def test_the_run_that_holds_least_goes_first_until_shares_are_even_then_runs_take_turns() -> None:
    queue = WaitingClaims()
    for number in range(4):
        queue.add(f"a-{number}", "a", 100 + number)
        queue.add(f"b-{number}", "b", 200 + number)
    assert served(queue, {"a": 2}, 6) == ["b-0", "b-1", "a-0", "b-2", "a-1", "b-3"]


def test_within_a_run_the_nearest_deadline_goes_first() -> None:
    queue = WaitingClaims()
    for trial, deadline in (("a-late", 30), ("a-soon", 10), ("a-later", 40)):
        queue.add(trial, "a", deadline)
    queue.add("a-soon", "a", 35)
    queue.remove("a-later")
    assert served(queue, {}, 2) == ["a-late", "a-soon"]
    assert queue.take(Counter()) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=40), st.integers(0, 60))
def test_every_trial_is_served_or_overdue_exactly_once(asked: list[tuple[str, int]], now: int) -> None:
    queue = WaitingClaims()
    for number, (run, deadline) in enumerate(asked):
        queue.add(f"{run}-{number}", run, deadline)
    late = list(queue.overdue(now))
    assert sorted(late) == sorted(f"{run}-{number}" for number, (run, at) in enumerate(asked) if at <= now)
    rest = served(queue, {}, len(queue))
    assert sorted(late + rest) == sorted(f"{run}-{number}" for number, (run, _) in enumerate(asked))
