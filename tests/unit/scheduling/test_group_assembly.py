import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.assembly import (
    Action,
    AssemblyRules,
    Finish,
    GroupAssembly,
    Lose,
    Refill,
    Retry,
    Wait,
)
from seatrial_trainer.scheduling.groups import GroupResult

RULES = AssemblyRules(group_size=2, min_valid=1, max_attempts=2, max_refills=1, retry_seconds=5, max_retry_seconds=60)


def ended(outcome: Outcome, name: str = "trial") -> Trajectory:
    return Trajectory(
        trial_id=name,
        group_id="group",
        task="task",
        domain="domain",
        purpose="train",
        harness="none",
        start_version=0,
        outcome=outcome,
        reward=None if outcome.is_infrastructure else 1.0,
    )


def settle_all(group: GroupAssembly, *ends: tuple[int, int, Outcome]) -> tuple[GroupAssembly, Action]:
    action: Action = Wait()
    for slot, attempt, outcome in ends:
        group, action = group.settle(slot, attempt, ended(outcome, f"{slot}-{attempt}"))
    return group, action


def test_a_group_is_finished_when_its_last_trial_ends_and_keeps_the_order_of_places() -> None:
    group = GroupAssembly.start(RULES)

    group, action = settle_all(group, (1, 1, Outcome.STEPS_EXHAUSTED))
    assert action == Wait()

    _, action = settle_all(group, (0, 1, Outcome.COMPLETED))
    assert isinstance(action, Finish)
    assert [trajectory.trial_id for trajectory in action.trajectories] == ["0-1", "1-1"]


def test_an_infrastructure_outcome_is_retried_after_a_pause_that_grows() -> None:
    rules = AssemblyRules(group_size=1, min_valid=1, max_attempts=4, retry_seconds=5, max_retry_seconds=15)
    group = GroupAssembly.start(rules)

    pauses = []
    for attempt in (1, 2, 3):
        group, action = group.settle(0, attempt, ended(Outcome.ENGINE_FAILED))
        assert isinstance(action, Retry)
        pauses.append(action.delay_seconds)

    assert pauses == [5, 10, 15]


def test_a_place_whose_attempts_are_spent_stays_empty_in_a_group_with_enough_valid_trials() -> None:
    _, action = settle_all(
        GroupAssembly.start(RULES),
        (0, 1, Outcome.COMPLETED),
        (1, 1, Outcome.SANDBOX_FAILED),
        (1, 2, Outcome.SANDBOX_FAILED),
    )

    assert isinstance(action, Finish)
    assert [trajectory.trial_id for trajectory in action.trajectories] == ["0-1"]


def test_a_group_below_its_minimum_is_refilled_in_new_places_and_then_lost() -> None:
    failed = Outcome.SANDBOX_FAILED

    group, action = settle_all(
        GroupAssembly.start(RULES), (0, 1, failed), (0, 2, failed), (1, 1, failed), (1, 2, failed)
    )
    assert action == Refill(first_slot=2, num_trials=2, delay_seconds=10)

    _, action = settle_all(group, (2, 1, failed), (2, 2, failed), (3, 1, failed), (3, 2, failed))
    assert action == Lose(GroupResult.REFILLS_SPENT)


def test_a_refill_completes_a_group_together_with_the_valid_trials_it_had() -> None:
    rules = AssemblyRules(group_size=3, min_valid=2, max_attempts=1, max_refills=1)

    group, action = settle_all(
        GroupAssembly.start(rules),
        (0, 1, Outcome.COMPLETED),
        (1, 1, Outcome.ENGINE_FAILED),
        (2, 1, Outcome.ENGINE_FAILED),
    )
    assert isinstance(action, Refill)

    _, action = settle_all(group, (3, 1, Outcome.COMPLETED), (4, 1, Outcome.ENGINE_FAILED))
    assert isinstance(action, Finish)
    assert [trajectory.trial_id for trajectory in action.trajectories] == ["0-1", "3-1"]


def test_a_task_none_of_whose_trials_can_be_graded_is_broken_at_once() -> None:
    rules = AssemblyRules(group_size=2, min_valid=1, max_attempts=1)

    _, action = settle_all(GroupAssembly.start(rules), (0, 1, Outcome.VERIFIER_FAILED), (1, 1, Outcome.VERIFIER_FAILED))

    assert action == Lose(GroupResult.TASK_BROKEN)


@pytest.mark.parametrize("other", [Outcome.COMPLETED, Outcome.SANDBOX_FAILED])
def test_a_task_is_not_broken_while_another_cause_can_explain_the_failures(other: Outcome) -> None:
    rules = AssemblyRules(group_size=2, min_valid=2, max_attempts=1)

    _, action = settle_all(GroupAssembly.start(rules), (0, 1, Outcome.VERIFIER_FAILED), (1, 1, other))

    assert isinstance(action, Refill)


def test_a_cancelled_trial_leaves_its_group_open() -> None:
    group = GroupAssembly.start(RULES)

    assert group.settle(0, 1, ended(Outcome.CANCELLED)) == (group, Wait())


@st.composite
def assembly_rules(draw: st.DrawFn) -> AssemblyRules:
    group_size = draw(st.integers(1, 5))
    return AssemblyRules(
        group_size,
        min_valid=draw(st.integers(1, group_size)),
        max_attempts=draw(st.integers(1, 3)),
        max_refills=draw(st.integers(0, 2)),
    )


@given(
    rules=assembly_rules(),
    outcomes=st.lists(
        st.sampled_from([one for one in Outcome if one is not Outcome.CANCELLED]), min_size=1, max_size=30
    ),
    rng=st.randoms(use_true_random=False),
)
def test_every_group_ends_once_with_valid_trials_only_and_never_fewer_than_its_minimum(
    rules: AssemblyRules, outcomes: list[Outcome], rng: random.Random
) -> None:
    group = GroupAssembly.start(rules)
    running = [(slot, 1) for slot in range(rules.group_size)]
    num_started = rules.group_size
    ends: list[Action] = []
    source = itertools.cycle(outcomes)
    while running:
        assert not ends
        slot, attempt = running.pop(rng.randrange(len(running)))
        group, action = group.settle(slot, attempt, ended(next(source), f"{slot}-{attempt}"))
        match action:
            case Retry():
                running.append((slot, attempt + 1))
                num_started += 1
            case Refill(first_slot, num_trials, _):
                running += [(first_slot + place, 1) for place in range(num_trials)]
                num_started += num_trials
            case Finish(trajectories):
                assert rules.min_valid <= len(trajectories) <= rules.group_size
                assert not any(trajectory.outcome.is_infrastructure for trajectory in trajectories)
                ends.append(action)
            case Lose():
                ends.append(action)
            case Wait():
                pass
    assert len(ends) == 1
    assert num_started <= rules.group_size * rules.max_attempts * (rules.max_refills + 1)
