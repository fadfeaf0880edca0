"""The time that is charged to an agent."""

import pytest

from seatrial_rollout.harness.trial_clock import TrialClock
from tests.clocks import HeldClock


@pytest.fixture
def held() -> HeldClock:
    return HeldClock(1000.0)


def test_nothing_is_charged_before_the_start(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    held.advance(5)
    assert (clock.charged, clock.remaining) == (0, 10)


def test_time_is_charged_until_the_budget_is_spent(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    held.advance(9)
    assert (clock.charged, clock.remaining, clock.is_spent) == (9, 1, False)
    held.advance(2)
    assert (clock.charged, clock.remaining, clock.is_spent) == (11, 0, True)


def test_time_after_the_end_is_not_charged(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    held.advance(4)
    clock.end()
    held.advance(20)
    with clock.stopped():
        held.advance(20)
    clock.excuse(1)
    assert clock.charged == 4


def test_excused_time_is_given_back(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    held.advance(9)
    clock.excuse(4)
    clock.excuse(-3)
    assert clock.charged == 5


def test_more_than_all_of_the_time_cannot_be_given_back(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    held.advance(1)
    clock.excuse(4)
    assert clock.charged == 0


def test_a_stopped_clock_stands_still_even_while_it_is_read(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    held.advance(1)
    with clock.stopped():
        held.advance(20)
        assert clock.charged == 1
    held.advance(2)
    assert clock.charged == 3


def test_stops_may_overlap(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    with clock.stopped():
        held.advance(1)
        with clock.stopped():
            held.advance(2)
        held.advance(4)
    assert clock.charged == 0


def test_a_clock_that_is_stopped_by_two_goes_on_when_both_have_let_go(held: HeldClock) -> None:
    clock = TrialClock(10, held)
    clock.start()
    first, second = clock.stopped(), clock.stopped()
    with first:
        held.advance(1)
        second.__enter__()
        held.advance(1)
    held.advance(1)
    second.__exit__(None, None, None)
    held.advance(5)
    assert clock.charged == 5
