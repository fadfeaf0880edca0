"""The broker's decisions, one at a time."""

from dataclasses import replace

import pytest

from seatrial_operator.sandboxes.core.actions import Bind, Create, Delete
from seatrial_operator.sandboxes.core.claims import ClaimState
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.patience import Patience
from seatrial_operator.sandboxes.core.stock import Shelf
from tests.sandbox_server import BOUNDS, Driver, SandboxServer, new_pool


@pytest.fixture
def driver() -> Driver:
    return Driver(SandboxServer(), new_pool())


def warm(driver: Driver, count: int) -> None:
    driver.pool.prefetches.put("run", count, driver.now)
    driver.settle()
    assert driver.pool.stock.count(Shelf.WARM) == count


def test_a_pool_makes_its_least_number_once_however_late_the_watch_is(driver: Driver) -> None:
    for _ in range(5):
        driver.send()
    assert driver.sent == [Create(driver.sent[0].name), Create(driver.sent[1].name)]  # type: ignore[union-attr]
    for action in list(driver.sent):
        driver.arrive(action)
    driver.send()
    assert not driver.sent
    assert len(driver.server.creates) == 2


def test_a_creation_without_an_answer_is_sent_again_under_its_name(driver: Driver) -> None:
    driver.send()
    first = driver.sent[0]
    assert isinstance(first, Create)
    driver.arrive(first, is_answered=False)
    driver.send()
    assert Create(first.name, again=True) in driver.sent
    driver.settle()
    assert len(driver.server.creates) == 2


def test_prefetch_warms_up_within_the_bounds_and_a_claim_uses_it_up(driver: Driver) -> None:
    warm(driver, 6)
    for trial in range(6):
        driver.pool.claim(f"t{trial}", "run", 60, driver.now)
    driver.settle()
    assert len(list(driver.pool.claims.in_state(ClaimState.HELD))) == 6
    assert driver.pool.stock.count(Shelf.WARM) == BOUNDS.warm_min
    driver.pool.prefetches.put("run", 1000, driver.now)
    driver.settle()
    assert driver.pool.stock.count(Shelf.WARM, Shelf.CLAIMED) == BOUNDS.ceiling


def test_a_claim_is_one_write(driver: Driver) -> None:
    warm(driver, 2)
    driver.server.writes.clear()
    driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    assert driver.server.writes == {"bind": 1, "create": 1}


def test_a_trial_that_asks_again_is_answered_with_the_same_sandbox(driver: Driver) -> None:
    warm(driver, 2)
    first = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    assert driver.pool.claim("t", "run", 60, driver.now) is first
    assert driver.server.writes["bind"] == 1


def test_a_trial_that_found_its_sandbox_dead_is_given_another(driver: Driver) -> None:
    warm(driver, 2)
    dead = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    new = driver.pool.claim("t", "run", 60, driver.now, replaces=dead.pod)
    driver.settle()
    assert new.state is ClaimState.HELD
    assert new.pod != dead.pod
    assert dead.pod not in driver.server.pods


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_claim_without_an_answer_is_never_given_a_second_sandbox(driver: Driver, is_carried_out: bool) -> None:
    warm(driver, 4)
    claim = driver.pool.claim("t", "run", 60, driver.now)
    driver.send()
    (bind,) = [action for action in driver.sent if isinstance(action, Bind)]
    driver.arrive(bind, is_carried_out=is_carried_out, is_answered=False)
    driver.settle()
    assert claim.state is ClaimState.HELD
    assert driver.server.owners == {claim.pod: {"t"}}


def test_an_event_older_than_an_answer_changes_nothing(driver: Driver) -> None:
    warm(driver, 2)
    before = list(driver.server.pods.values())
    driver.pool.claim("t", "run", 60, driver.now)
    driver.send()
    for action in list(driver.sent):
        driver.arrive(action)
    for pod in before:
        driver.pool.observe(pod, driver.now)
    assert driver.pool.supply.counts().claimed == 1


def test_a_sandbox_that_changed_meanwhile_is_passed_over(driver: Driver) -> None:
    warm(driver, 2)
    changed = driver.pool.stock.first_warm()
    assert changed is not None
    driver.server.put(changed)
    claim = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    assert claim.state is ClaimState.HELD
    assert claim.pod != changed.name


def test_a_new_broker_finds_who_holds_what_and_gives_everyone_a_full_period(driver: Driver) -> None:
    warm(driver, 2)
    claim = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    driver.pass_time(100)
    successor = Driver(driver.server, new_pool(), now=driver.now)
    successor.relist()
    assert successor.pool.claim("t", "run", 60, successor.now).pod == claim.pod
    successor.pass_time(Patience().lease - 1)
    assert claim.pod in driver.server.pods
    successor.pass_time(2)
    successor.settle()
    assert claim.pod not in driver.server.pods


def test_a_claim_of_a_dead_broker_that_arrives_late_gives_no_trial_two_sandboxes(driver: Driver) -> None:
    warm(driver, 2)
    driver.pool.claim("t", "run", 60, driver.now)
    driver.send()
    (late,) = [action for action in driver.sent if isinstance(action, Bind)]
    successor = Driver(driver.server, new_pool(), now=driver.now)
    successor.relist()
    other = driver.server.pods.keys() - {late.pod.name}
    driver.server.put(driver.server.pods[late.pod.name])
    successor.tell(1)
    claim = successor.pool.claim("t", "run", 60, successor.now)
    successor.settle()
    assert claim.state is ClaimState.HELD
    stray = next(pod for pod in driver.server.pods.values() if not pod.trial)
    driver.server.bind(Bind(stray, "t", "run"))
    successor.settle()
    assert [pod.name for pod in driver.server.pods.values() if pod.trial] == [claim.pod]
    assert other


def test_a_lease_that_is_not_renewed_runs_out(driver: Driver) -> None:
    warm(driver, 3)
    kept = driver.pool.claim("kept", "run", 60, driver.now)
    left = driver.pool.claim("left", "run", 60, driver.now)
    driver.settle()
    driver.pass_time(100)
    driver.pool.renew("kept", driver.now)
    driver.pass_time(50)
    driver.settle()
    assert kept.state is ClaimState.HELD
    assert left.failure is not None
    assert left.failure.kind is FailureKind.LEASE
    assert left.pod not in driver.server.pods


def test_a_released_sandbox_is_deleted_and_the_next_in_the_queue_is_served(driver: Driver) -> None:
    for trial in range(11):
        driver.pool.claim(f"t{trial}", "run", 60, driver.now)
    driver.settle()
    assert driver.pool.claims.num_waiting == 1
    first = driver.pool.claims.get("t0")
    assert first is not None
    driver.pool.release("t0", "another")
    assert driver.pool.claims.get("t0") is first
    driver.pool.release("t0")
    driver.settle()
    assert first.pod not in driver.server.pods
    assert driver.pool.claims.num_waiting == 0


def test_an_exhausted_pool_serves_the_run_that_holds_least_first(driver: Driver) -> None:
    for trial in range(20):
        driver.pool.claim(f"big-{trial:02}", "big", 600 - trial, driver.now)
    driver.settle()
    driver.pool.claim("small", "small", 1000, driver.now)
    holder = next(driver.pool.claims.in_state(ClaimState.HELD))
    driver.pool.release(holder.trial)
    driver.settle()
    small = driver.pool.claims.get("small")
    assert small is not None
    assert small.state is ClaimState.HELD


def test_a_claim_that_waits_too_long_is_told_why(driver: Driver) -> None:
    for trial in range(11):
        driver.pool.claim(f"t{trial}", "run", driver.now + 30 + trial, driver.now)
    driver.settle()
    driver.pass_time(60)
    late = driver.pool.claims.get("t10")
    assert late is not None
    assert late.failure is not None
    assert late.failure.kind is FailureKind.DEADLINE
    assert "all of which are in use" in late.failure.message


def test_a_quota_is_told_tried_again_and_used_as_soon_as_there_is_room(driver: Driver) -> None:
    driver.server.quota = 3
    claims = [driver.pool.claim(f"t{trial}", "run", driver.now + 500, driver.now) for trial in range(5)]
    driver.settle()
    assert sum(claim.state is ClaimState.HELD for claim in claims) == 3
    problem = driver.pool.problem()
    assert problem is not None
    assert problem.kind is FailureKind.QUOTA
    refused = driver.server.writes["create"]
    driver.pass_time(3)
    driver.settle()
    assert driver.server.writes["create"] <= refused + 3
    for claim in [claim for claim in claims if claim.state is ClaimState.HELD]:
        driver.pool.release(claim.trial)
    driver.settle()
    assert sum(claim.state is ClaimState.HELD for claim in claims) == 5


def test_an_image_that_cannot_be_pulled_fails_claims_after_a_while_and_is_tried_ever_more_rarely(
    driver: Driver,
) -> None:
    claim = driver.pool.claim("t", "run", driver.now + 600, driver.now)
    pulls = Failure(FailureKind.IMAGE_PULL, "ErrImagePull")
    for _ in range(300):
        driver.settle(ready=False)
        for pod in list(driver.server.pods.values()):
            if pod.failure is None:
                driver.server.put(replace(pod, failure=pulls, is_scheduled=True))
        driver.tell(100)
        driver.pass_time(1)
    assert claim.failure == pulls
    assert driver.now - 300 == 0
    assert len(driver.server.creates) <= 10


def test_gated_pods_are_never_removed_for_being_slow_or_too_many(driver: Driver) -> None:
    driver.pool.prefetches.put("run", 6, driver.now)
    driver.settle(ready=False)
    for pod in list(driver.server.pods.values()):
        driver.server.put(replace(pod, is_gated=True))
    driver.tell(100)
    driver.pool.prefetches.put("run", 0, driver.now)
    for _ in range(20):
        driver.pass_time(100)
        driver.settle(ready=False)
    assert len(driver.server.pods) == 6


def test_what_nobody_wants_any_more_is_removed_after_a_while(driver: Driver) -> None:
    warm(driver, 8)
    driver.pool.prefetches.put("run", 0, driver.now)
    driver.settle()
    assert len(driver.server.pods) == 8
    for _ in range(3):
        driver.pass_time(40)
        driver.settle()
    assert len(driver.server.pods) == BOUNDS.warm_min


def test_a_world_that_changed_is_made_anew_and_its_claims_stay(driver: Driver) -> None:
    warm(driver, 4)
    claim = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    driver.pool.stock.set_revision("r2")
    driver.send()
    gone = {action.name for action in driver.sent if isinstance(action, Delete)}
    assert gone == driver.server.pods.keys() - {claim.pod}


@pytest.mark.parametrize("kind", [FailureKind.OUT_OF_MEMORY, FailureKind.EVICTED, FailureKind.NODE_LOST])
def test_a_sandbox_that_fails_is_lost_with_the_reason_and_deleted(driver: Driver, kind: FailureKind) -> None:
    warm(driver, 2)
    claim = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    driver.pool.claims.drain_settled()
    pod = driver.server.pods[claim.pod]
    driver.server.put(replace(pod, failure=Failure(kind, "why")))
    driver.settle()
    assert driver.pool.claims.drain_settled() == [claim]
    assert claim.failure == Failure(kind, "why")
    assert claim.pod not in driver.server.pods
    assert driver.pool.tally.failed_by_run == {"run": 1}


def test_warm_sandboxes_that_are_too_old_are_replaced_a_few_at_a_time(driver: Driver) -> None:
    warm(driver, 8)
    driver.now = BOUNDS.lifetime_seconds
    driver.pool.prefetches.put("run", 8, driver.now)
    driver.pass_time(1)
    driver.send()
    assert len([action for action in driver.sent if isinstance(action, Delete)]) == 1


def test_a_dead_brokers_claim_that_comes_between_a_claim_and_its_answer_is_that_trials(driver: Driver) -> None:
    warm(driver, 2)
    driver.pool.claim("mine", "run", 60, driver.now)
    driver.send()
    (bind,) = [action for action in driver.sent if isinstance(action, Bind)]
    driver.server.bind(Bind(bind.pod, "other", "run"))
    driver.tell(100)
    driver.settle()
    holders = {pod.trial: pod.name for pod in driver.server.pods.values() if pod.trial}
    assert holders["other"] == bind.pod.name
    other = driver.pool.claims.get("other")
    assert other is not None
    assert (other.state, other.pod) == (ClaimState.HELD, bind.pod.name)


def gate(driver: Driver) -> None:
    for pod in list(driver.server.pods.values()):
        if not pod.is_ready:
            driver.server.put(replace(pod, is_gated=True))
    driver.tell(100)


def test_a_gated_pod_of_a_former_form_of_the_world_is_removed_only_once_its_queue_lets_it_through(
    driver: Driver,
) -> None:
    driver.settle(ready=False)
    gate(driver)
    driver.server.revision = "r2"
    driver.pool.become(BOUNDS, "r2", None)
    driver.settle(ready=False)
    former = [pod for pod in driver.server.pods.values() if pod.is_gated]
    assert len(former) == BOUNDS.warm_min
    assert len(driver.server.pods) == 2 * BOUNDS.warm_min
    for pod in former:
        driver.server.put(replace(pod, is_gated=False))
    driver.tell(100)
    driver.settle(ready=False)
    assert not driver.server.pods.keys() & {pod.name for pod in former}


def test_warm_sandboxes_are_not_removed_because_gated_ones_are_too_many(driver: Driver) -> None:
    warm(driver, 2)
    driver.pool.prefetches.put("run", 6, driver.now)
    driver.settle(ready=False)
    gate(driver)
    driver.pool.prefetches.put("run", 0, driver.now)
    for _ in range(3):
        driver.pass_time(40)
        driver.settle(ready=False)
    assert driver.pool.num_warm == 2
    assert len(driver.server.pods) == 6


def test_a_pod_that_waited_long_for_a_node_or_was_ready_for_long_has_time_to_become_ready(driver: Driver) -> None:
    warm(driver, 2)
    driver.pass_time(Patience().start + 10)
    name = next(iter(driver.server.pods))
    driver.server.put(replace(driver.server.pods[name], is_ready=False, unready_since=driver.now))
    driver.tell(100)
    driver.pass_time(Patience().start - 10)
    assert driver.pool.problem() is None
    driver.pass_time(20)
    problem = driver.pool.problem()
    assert problem is not None
    assert "was not ready for" in problem.message


def test_a_failure_that_needs_a_person_has_its_own_while_after_one_that_needs_none(driver: Driver) -> None:
    driver.server.quota = 0
    claim = driver.pool.claim("t", "run", driver.now + 600, driver.now)
    for _ in range(60):
        driver.settle()
        driver.pass_time(1)
    driver.server.quota = 10
    while not driver.server.pods:
        driver.pass_time(1)
        driver.settle(ready=False)
    for pod in list(driver.server.pods.values()):
        driver.server.put(replace(pod, failure=Failure(FailureKind.OUT_OF_MEMORY, "OOM")))
    driver.tell(100)
    driver.pass_time(Patience().trouble - 2)
    assert claim.state is ClaimState.WAITING
    driver.pass_time(5)
    assert claim.failure == Failure(FailureKind.OUT_OF_MEMORY, "OOM")


def test_a_pool_that_nobody_uses_any_more_is_idle(driver: Driver) -> None:
    assert driver.pool.is_idle
    warm(driver, 2)
    assert not driver.pool.is_idle


def test_a_trial_holds_a_sandbox_for_its_lifetime_however_often_it_renews(driver: Driver) -> None:
    warm(driver, 2)
    driver.pool.become(replace(BOUNDS, lifetime_seconds=300), "r1", None)
    claim = driver.pool.claim("t", "run", 60, driver.now)
    driver.settle()
    for _ in range(5):
        driver.pass_time(59)
        driver.pool.renew("t", driver.now)
    assert claim.state is ClaimState.HELD
    driver.pass_time(10)
    assert claim.failure is not None
    assert claim.failure.kind is FailureKind.LIFETIME
    assert "lifetimeSeconds 300" in claim.failure.message
