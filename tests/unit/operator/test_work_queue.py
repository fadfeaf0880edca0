"""The queue of keys: each once, not too often, later after failures, and nothing asked for is lost."""

from hypothesis import given
from hypothesis import strategies as st

from seatrial_operator.controller.queue import Pacing, WorkQueue
from seatrial_operator.kube.resources import ObjectKey

A, B = ObjectKey("RLRun", "team", "a"), ObjectKey("RLRun", "team", "b")
PACING = Pacing(least_interval_seconds=1.0, first_backoff_seconds=2.0, max_backoff_seconds=8.0)


def queue() -> WorkQueue:
    return WorkQueue(PACING)


def test_a_key_asked_for_many_times_is_looked_at_once() -> None:
    keys = queue()
    for _ in range(5):
        keys.add(A, 0.0)
    assert keys.take(0.0) == A
    assert keys.take(0.0) is None


def test_the_key_that_is_due_longest_comes_first() -> None:
    keys = queue()
    keys.add(A, 0.0, after_seconds=2.0)
    keys.add(B, 0.0, after_seconds=1.0)
    assert keys.take(0.5) is None
    assert keys.next_due() == 1.0
    assert keys.take(3.0) == B
    assert keys.take(3.0) == A


def test_an_earlier_time_overrules_a_later_one_and_not_the_other_way_round() -> None:
    keys = queue()
    keys.add(A, 0.0, after_seconds=60.0)
    keys.add(A, 0.0, after_seconds=5.0)
    keys.add(A, 0.0, after_seconds=90.0)
    assert keys.next_due() == 5.0


def test_a_key_in_work_is_not_taken_again_and_what_asked_for_it_is_not_lost() -> None:
    keys = queue()
    keys.add(A, 0.0)
    assert keys.take(0.0) == A
    keys.add(A, 0.1)
    assert keys.take(5.0) is None
    keys.done(A, 5.0, after_seconds=300.0)
    assert keys.take(5.0) == A


def test_events_in_a_storm_cost_one_look_per_interval() -> None:
    keys = queue()
    looks = 0
    for tick in range(100):
        keys.add(A, tick / 10)
        if keys.take(tick / 10):
            looks += 1
            keys.done(A, tick / 10, after_seconds=300.0)
    assert looks == 10


def test_failures_wait_longer_each_time_up_to_a_bound_and_success_forgets_them() -> None:
    keys = queue()
    keys.add(A, 0.0)
    now, waits = 0.0, []
    for _ in range(5):
        assert keys.take(now) == A
        waits.append(keys.failed(A, now))
        now += waits[-1]
    assert waits == [2.0, 4.0, 8.0, 8.0, 8.0]
    assert keys.take(now) == A
    keys.done(A, now, after_seconds=1.0)
    now += 1.0
    assert keys.take(now) == A
    assert keys.failed(A, now) == 2.0


def test_an_object_that_is_gone_is_forgotten_unless_something_asked_meanwhile() -> None:
    keys = queue()
    keys.add(A, 0.0)
    keys.take(0.0)
    keys.forget(A, 0.0)
    assert keys.next_due() is None
    keys.add(A, 10.0)
    keys.take(10.0)
    keys.add(A, 10.5)
    keys.forget(A, 11.0)
    assert keys.take(12.0) == A


def end(keys: WorkQueue, how: str, key: ObjectKey, now: float) -> None:
    match how:
        case "d":
            keys.done(key, now, 60.0)
        case "f":
            keys.failed(key, now)
        case _:
            keys.forget(key, now)


STEPS = st.lists(st.tuples(st.sampled_from("adfx"), st.sampled_from([A, B]), st.floats(0, 3)), max_size=60)


@given(STEPS)
def test_whatever_happens_a_key_asked_for_is_due_again(steps: list[tuple[str, ObjectKey, float]]) -> None:
    keys, now, taken, asked = queue(), 0.0, set(), set()
    for what, key, seconds in steps:
        now += seconds
        if what == "a":
            keys.add(key, now)
            asked.add(key)
        elif (found := keys.take(now)) is not None:
            assert found not in taken
            asked.discard(found)
            taken.add(found)
        elif taken:
            ended = taken.pop()
            end(keys, what, ended, now)
    for key in [*taken]:
        keys.done(key, now, 60.0)
    found = set()
    while (key := keys.take(now + 100.0)) is not None:
        found.add(key)
    assert asked <= found
