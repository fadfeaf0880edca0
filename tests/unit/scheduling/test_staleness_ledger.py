import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_trainer.scheduling.staleness import Credit, StalenessLedger


def admit_all(ledger: StalenessLedger) -> tuple[StalenessLedger, list[Credit]]:
    credits_ = []
    while ledger.num_credits > 0:
        ledger, credit = ledger.admit()
        credits_.append(credit)
    return ledger, credits_


def test_admissions_reach_staleness_plus_one_batches_before_the_first_step() -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=16, max_staleness=3))

    assert len(credits_) == 64
    assert {credit.due for credit in credits_} == {3}
    with pytest.raises(ValueError, match="no credit at version 0"):
        ledger.admit()


def test_a_step_waits_for_a_group_that_is_due_although_enough_are_finished() -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=2, max_staleness=1))
    for credit in credits_[:2]:
        ledger = ledger.finish(credit)
    ledger = ledger.take().advance(1)
    ledger, fresh = admit_all(ledger)
    for credit in fresh:
        ledger = ledger.finish(credit)

    assert ledger.num_finished == 2
    assert ledger.held_by == 1
    assert not ledger.is_ready
    assert ledger.finish(credits_[2]).held_by == 1
    assert ledger.finish(credits_[2]).finish(credits_[3]).is_ready


def test_a_step_waits_when_a_fresher_group_would_crowd_out_more_than_a_later_step_can_train() -> None:
    ledger = StalenessLedger(batch_size=2, max_staleness=2)
    ledger, oldest = admit_all(ledger)
    for credit in oldest[:2]:
        ledger = ledger.finish(credit)
    ledger = ledger.take().advance(1)
    ledger, fresher = admit_all(ledger)
    for credit in (fresher[0], fresher[1]):
        ledger = ledger.finish(credit)

    # Four of the oldest are in flight, due at step 2, which trains two: step 1 has to train two of them.
    assert ledger.step == 1
    assert ledger.num_finished == 2
    assert ledger.held_by == 2
    assert ledger.finish(oldest[2]).held_by == 2
    assert ledger.finish(oldest[2]).finish(oldest[3]).held_by is None


def test_a_lost_group_returns_its_credit_and_its_replacement_has_a_due_step_of_its_own() -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=1, max_staleness=1))
    ledger = ledger.finish(credits_[0]).take().advance(1)
    ledger, _ = admit_all(ledger)

    ledger = ledger.lose(credits_[1])

    assert ledger.num_credits == 1
    _, replacement = ledger.admit()
    assert replacement == Credit(start_version=1, due=2)


def test_zero_staleness_admits_nothing_while_a_step_trains() -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=2, max_staleness=0))
    for credit in credits_:
        ledger = ledger.finish(credit)

    training = ledger.take()

    assert training.num_credits == 0
    assert training.advance(1).num_credits == 2


def test_no_group_is_admitted_that_only_a_step_after_the_last_could_train() -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=2, max_staleness=3, num_steps=2))

    assert len(credits_) == 4
    assert {credit.due for credit in credits_} == {1}
    assert ledger.num_credits == 0


def test_a_step_cannot_be_taken_twice_at_one_version() -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=1, max_staleness=1))
    for credit in credits_:
        ledger = ledger.finish(credit)

    with pytest.raises(ValueError, match="step 1 may not start at version 0"):
        ledger.take().take()


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_does_not_follow_the_last_step_is_refused(version: int) -> None:
    ledger, credits_ = admit_all(StalenessLedger(batch_size=1, max_staleness=0))

    with pytest.raises(ValueError, match="cannot follow 0"):
        ledger.finish(credits_[0]).take().advance(version)


def test_restored_groups_that_do_not_fit_into_the_steps_left_to_them_are_refused() -> None:
    ledger = StalenessLedger(batch_size=2, max_staleness=1, version=5, step=5)

    assert ledger.restore_finished([Credit(4, 5), Credit(4, 5), Credit(5, 6)]).num_credits == 1
    with pytest.raises(ValueError, match="3 groups are due by step 5"):
        ledger.restore_finished([Credit(4, 5)] * 3)
    with pytest.raises(ValueError, match="1 groups are due by step 4"):
        ledger.restore_finished([Credit(3, 4)])


class Run:
    """The ledger with the groups that it only counts, driven by random events that it allows."""

    def __init__(self, ledger: StalenessLedger, rng: random.Random) -> None:
        self.ledger = ledger
        self.rng = rng
        self.in_flight: list[Credit] = []
        self.finished: list[Credit] = []
        self.num_trained = 0

    def step(self, *, lost_share: float, eagerness: float) -> None:
        """Let one possible event happen."""
        events = []
        if self.ledger.num_credits > 0 and self.rng.random() < eagerness:
            events.append(self._admit)
        if self.in_flight:
            events.append(self._lose if self.rng.random() < lost_share else self._finish)
        if self.ledger.is_ready:
            events.append(self._take)
        if self.ledger.step > self.ledger.version:
            events.append(self._advance)
        if not events:
            assert self.ledger.num_credits > 0, "nothing can ever happen again"
            events.append(self._admit)
        self.rng.choice(events)()

    def _admit(self) -> None:
        self.ledger, credit = self.ledger.admit()
        self.in_flight.append(credit)

    def _finish(self) -> None:
        credit = self._leave()
        self.ledger = self.ledger.finish(credit)
        self.finished.append(credit)

    def _lose(self) -> None:
        self.ledger = self.ledger.lose(self._leave())

    def _leave(self) -> Credit:
        return self.in_flight.pop(self.rng.randrange(len(self.in_flight)))

    def _take(self) -> None:
        self.finished.sort(key=lambda credit: credit.due)
        batch, self.finished = self.finished[: self.ledger.batch_size], self.finished[self.ledger.batch_size :]
        assert all(self.ledger.step - credit.start_version <= self.ledger.max_staleness for credit in batch)
        assert not any(credit.due <= self.ledger.step for credit in [*self.finished, *self.in_flight])
        self.num_trained += len(batch)
        self.ledger = self.ledger.take()

    def _advance(self) -> None:
        self.ledger = self.ledger.advance(self.ledger.version + 1)


@given(
    batch_size=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    num_steps=st.integers(1, 12),
    lost_share=st.sampled_from([0.0, 0.1, 0.5]),
    eagerness=st.sampled_from([0.1, 0.5, 1.0]),
    rng=st.randoms(use_true_random=False),
)
def test_any_order_of_events_trains_every_group_within_its_bound_and_reaches_the_last_step(
    batch_size: int, max_staleness: int, num_steps: int, lost_share: float, eagerness: float, rng: random.Random
) -> None:
    run = Run(StalenessLedger(batch_size, max_staleness, num_steps), rng)

    while run.ledger.version < num_steps:
        run.step(lost_share=lost_share, eagerness=eagerness)
        num_admitted = run.num_trained + len(run.finished) + len(run.in_flight)
        assert num_admitted <= (run.ledger.version + max_staleness + 1) * batch_size
        assert run.ledger.num_in_flight == len(run.in_flight)
        assert run.ledger.num_finished == len(run.finished)

    assert run.num_trained == num_steps * batch_size
    assert not run.finished
    assert not run.in_flight
