# ruff: noqa: D102  the name of a rule is its sentence
"""Whatever happens in whatever order: answers lost, watches late, brokers killed, pods deleted by others."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seatrial_operator.sandboxes.core.actions import Action
from seatrial_operator.sandboxes.core.claims import ClaimState
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from tests.sandbox_server import BOUNDS, Driver, SandboxServer, new_pool

CLAIM_SECONDS = 100


class Interleavings(RuleBasedStateMachine):
    """Everything that may happen to a broker."""

    @initialize(quota=st.sampled_from([4, 10_000]), has_queue=st.booleans())
    def begin(self, quota: int, has_queue: bool) -> None:
        self.server = SandboxServer(quota=quota, has_queue=has_queue)
        self.driver = Driver(self.server, new_pool())
        self.num_trials = 0
        self.released: set[str] = set()
        self.late: list[Action] = []
        """Requests of brokers that are dead."""
        self.num_late_creates = 0

    @rule(run=st.sampled_from("abc"))
    def claim(self, run: str) -> None:
        self.driver.pool.claim(f"t{self.num_trials}", run, self.driver.now + CLAIM_SECONDS, self.driver.now)
        self.num_trials += 1

    @precondition(lambda self: self.num_trials)
    @rule(data=st.data())
    def claim_again(self, data: st.DataObject) -> None:
        trial = f"t{data.draw(st.integers(0, self.num_trials - 1))}"
        if trial not in self.released:
            self.driver.pool.claim(trial, "a", self.driver.now + CLAIM_SECONDS, self.driver.now)

    @precondition(lambda self: self.num_trials)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        trial = f"t{data.draw(st.integers(0, self.num_trials - 1))}"
        self.driver.pool.release(trial)
        self.released.add(trial)

    @rule(count=st.integers(0, 12))
    def prefetch(self, count: int) -> None:
        self.driver.pool.prefetches.put("a", count, self.driver.now)

    @rule()
    def send(self) -> None:
        self.driver.send()

    @precondition(lambda self: self.driver.sent)
    @rule(data=st.data(), is_carried_out=st.booleans(), is_answered=st.booleans())
    def arrive(self, data: st.DataObject, is_carried_out: bool, is_answered: bool) -> None:
        action = data.draw(st.sampled_from(self.driver.sent))
        self.driver.arrive(action, is_carried_out=is_carried_out, is_answered=is_answered)

    @rule(count=st.integers(1, 5))
    def tell(self, count: int) -> None:
        self.driver.tell(count)

    @rule(count=st.integers(1, 4))
    def become_ready(self, count: int) -> None:
        for name in [name for name, pod in self.server.pods.items() if not pod.is_ready][:count]:
            self.server.make_ready(name)

    @precondition(lambda self: self.server.pods)
    @rule(data=st.data(), kind=st.sampled_from(FailureKind))
    def fail(self, data: st.DataObject, kind: FailureKind) -> None:
        pod = self.server.pods[data.draw(st.sampled_from(sorted(self.server.pods)))]
        if not pod.is_gated:
            self.server.put(replace(pod, failure=Failure(kind, "why")))

    @precondition(lambda self: self.server.pods)
    @rule(data=st.data())
    def deleted_by_somebody(self, data: st.DataObject) -> None:
        self.server.remove(data.draw(st.sampled_from(sorted(self.server.pods))))

    @rule(seconds=st.integers(1, 20))
    def pass_time(self, seconds: int) -> None:
        self.driver.pass_time(seconds)

    @rule()
    def watch_breaks(self) -> None:
        self.driver.relist()

    @rule()
    def broker_is_killed(self) -> None:
        self.driver.send()
        self.late += self.driver.sent
        self.driver = Driver(self.server, new_pool(), now=self.driver.now)
        self.driver.relist()

    @precondition(lambda self: self.late)
    @rule()
    def arrive_late(self) -> None:
        self.num_late_creates += self.server.carry_out_late(self.late.pop())

    @invariant()
    def no_sandbox_was_ever_given_to_two_trials(self) -> None:
        assert all(len(trials) == 1 for trials in self.server.owners.values())

    @invariant()
    def no_pod_is_removed_while_a_gate_holds_it_back(self) -> None:
        assert not self.server.reaped

    @invariant()
    def no_pod_is_made_beyond_the_ceiling(self) -> None:
        assert len(self.server.pods) <= BOUNDS.ceiling + self.num_late_creates

    def teardown(self) -> None:
        """In the end every claim is served or told why not, and no trial holds two sandboxes."""
        if not hasattr(self, "driver"):
            return
        asked = {f"t{number}" for number in range(self.num_trials)} - self.released
        for trial in asked:
            self.driver.pool.claim(trial, "a", self.driver.now + CLAIM_SECONDS, self.driver.now)
        answered: set[str] = {
            trial for trial in asked if (claim := self.driver.pool.claims.get(trial)) and claim.state is ClaimState.HELD
        }
        for _ in range(CLAIM_SECONDS + 10):
            self.driver.settle()
            self.driver.pass_time(1)
            for claim in self.driver.pool.claims.drain_settled():
                assert claim.state is ClaimState.HELD or claim.failure
                answered.add(claim.trial)
        assert asked <= answered
        holders = [pod.trial for pod in self.server.pods.values() if pod.trial]
        assert len(holders) == len(set(holders))


@pytest.mark.filterwarnings("default")
def test_no_interleaving_breaks_the_promises_of_the_broker() -> None:
    Interleavings.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
    Interleavings.TestCase().runTest()
