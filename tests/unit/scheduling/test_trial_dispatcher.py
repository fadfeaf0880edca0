import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import repeat

import pytest

from seatrial_api.clock import Deadline
from seatrial_api.errors import WaitTimeoutError
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.dispatcher import Job, TrialDispatcher
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time

CLOCK = LoopClock()


class SleepingRunner:
    """Runs a trial by sleeping ten seconds; notes what runs when."""

    def __init__(self, act: Callable[[TrialTicket], Awaitable[Outcome]] | None = None) -> None:
        self.act = act
        self.started: list[tuple[float, str]] = []
        self.most_at_once = 0
        self._num_running = 0

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """Run one trial."""
        self.started.append((CLOCK.now(), ticket.trial_id))
        self._num_running += 1
        self.most_at_once = max(self.most_at_once, self._num_running)
        try:
            outcome = await self._outcome(ticket)
        finally:
            self._num_running -= 1
        reward = None if outcome.is_infrastructure else 1.0
        return ticket.without_result(Outcome.CANCELLED, "").model_copy(update={"outcome": outcome, "reward": reward})

    async def _outcome(self, ticket: TrialTicket) -> Outcome:
        if self.act is not None:
            return await self.act(ticket)
        await CLOCK.sleep(10)
        return Outcome.COMPLETED


class Desk:
    """Collects what was settled."""

    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []

    @property
    def outcomes(self) -> Counter[str]:
        """Outcomes by count."""
        return Counter(trajectory.outcome for trajectory in self.trajectories)

    async def settle(self, ticket: TrialTicket, trajectory: Trajectory) -> None:
        """Note a trajectory."""
        assert ticket.trial_id == trajectory.trial_id
        self.trajectories.append(trajectory)


def tickets(count: int, group: str = "group") -> list[TrialTicket]:
    return [TrialTicket(group, slot, f"task-{slot}", "any", "train", start_version=0) for slot in range(count)]


def dispatcher_of(runner: SleepingRunner, limit: int, trial_timeout_seconds: float = 1_000.0) -> TrialDispatcher:
    return TrialDispatcher(runner, limit=limit, trial_timeout_seconds=trial_timeout_seconds, clock=CLOCK)


def submit_all(dispatcher: TrialDispatcher, desk: Desk, count: int, delay_seconds: float = 0.0) -> None:
    for ticket in tickets(count):
        dispatcher.submit(Job(ticket, desk.settle, delay_seconds))
    dispatcher.fill()


def test_no_more_trials_run_at_once_than_the_limit_allows() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> None:
        async with dispatcher_of(runner, limit=3) as dispatcher:
            submit_all(dispatcher, desk, 7)
            await dispatcher.drain(Deadline.after(100, CLOCK))

        assert runner.most_at_once == 3
        assert [start for start, _ in runner.started] == [0, 0, 0, 10, 10, 10, 20]
        assert desk.outcomes == {Outcome.COMPLETED: 7}

    run_in_virtual_time(main())


def test_a_raised_limit_starts_trials_at_once_and_a_lowered_one_cancels_none() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> None:
        async with dispatcher_of(runner, limit=1) as dispatcher:
            submit_all(dispatcher, desk, 6)
            await CLOCK.sleep(1)
            dispatcher.limit = 3
            await CLOCK.sleep(1)
            dispatcher.limit = 1
            await dispatcher.drain(Deadline.after(100, CLOCK))

        assert [start for start, _ in runner.started] == [0, 1, 1, 11, 21, 31]
        assert desk.outcomes == {Outcome.COMPLETED: 6}

    run_in_virtual_time(main())


def test_the_feed_is_asked_only_when_a_place_is_free_and_nothing_waits() -> None:
    runner, desk = SleepingRunner(), Desk()
    asked: list[float] = []

    def feed() -> list[Job]:
        asked.append(CLOCK.now())
        return [Job(ticket, desk.settle) for ticket in tickets(2, f"fed-{len(asked)}")]

    async def main() -> None:
        async with dispatcher_of(runner, limit=2) as dispatcher:
            submit_all(dispatcher, desk, 3)
            dispatcher.feed_from(feed)
            await CLOCK.sleep(25)

        assert asked == [10, 20]
        assert [trial for _, trial in runner.started][3] == "fed-1-t00-a1"

    run_in_virtual_time(main())


def test_what_waits_and_then_what_is_foreseen_comes_next_as_far_as_there_are_places() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> None:
        async with dispatcher_of(runner, limit=3) as dispatcher:
            assert not dispatcher.upcoming()
            submit_all(dispatcher, desk, 5)
            waiting = dispatcher.upcoming()
            assert waiting.total() == 2
            dispatcher.feed_from(tuple, lambda: repeat(("train", "foreseen"), 8))
            assert dispatcher.upcoming() == waiting + Counter({("train", "foreseen"): 1})
            await dispatcher.drain(Deadline.after(100, CLOCK))
            assert not dispatcher.upcoming()

    run_in_virtual_time(main())


def test_a_trial_that_pauses_before_its_attempt_keeps_its_place() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> None:
        async with dispatcher_of(runner, limit=1) as dispatcher:
            submit_all(dispatcher, desk, 2, delay_seconds=5)
            assert dispatcher.num_in_flight == 1
            await dispatcher.drain(Deadline.after(100, CLOCK))

        assert [start for start, _ in runner.started] == [5, 20]

    run_in_virtual_time(main())


@pytest.mark.parametrize("error", [KeyError("verdict"), TimeoutError("inside the runner")])
def test_a_runner_that_raises_is_an_outcome_with_the_errors_text(error: Exception) -> None:
    desk = Desk()

    async def act(_: TrialTicket) -> Outcome:
        raise error

    async def main() -> None:
        async with dispatcher_of(SleepingRunner(act), limit=1) as dispatcher:
            submit_all(dispatcher, desk, 1)
            await dispatcher.drain(Deadline.after(100, CLOCK))

        assert desk.outcomes == {Outcome.HARNESS_FAILED: 1}
        assert desk.trajectories[0].detail == f"{type(error).__name__}: {error}"

    run_in_virtual_time(main())


def test_a_trial_host_that_hangs_is_given_up_at_the_backstop() -> None:
    desk = Desk()

    async def act(_: TrialTicket) -> Outcome:
        await CLOCK.sleep(10_000)
        return Outcome.COMPLETED

    async def main() -> None:
        async with dispatcher_of(SleepingRunner(act), limit=1, trial_timeout_seconds=60) as dispatcher:
            submit_all(dispatcher, desk, 1)
            await dispatcher.drain(Deadline.after(100, CLOCK))
            assert CLOCK.now() == 60

        assert desk.outcomes == {Outcome.DEADLINE_EXCEEDED: 1}
        assert "no answer within 60 s" in desk.trajectories[0].detail

    run_in_virtual_time(main())


def test_stopping_settles_every_trial_once_and_names_those_in_flight() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> None:
        async with dispatcher_of(runner, limit=2) as dispatcher:
            submit_all(dispatcher, desk, 5)
            await CLOCK.sleep(15)
            in_flight = await dispatcher.stop()

        assert [ticket.slot for ticket in in_flight] == [2, 3]
        assert desk.outcomes == {Outcome.COMPLETED: 2, Outcome.CANCELLED: 3}
        assert len({trajectory.trial_id for trajectory in desk.trajectories}) == 5

    run_in_virtual_time(main())


def test_a_trial_that_is_stopped_before_its_first_step_is_settled_too() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> None:
        async with dispatcher_of(runner, limit=2) as dispatcher:
            submit_all(dispatcher, desk, 2)
            await dispatcher.stop()

        assert not runner.started
        assert desk.outcomes == {Outcome.CANCELLED: 2}

    run_in_virtual_time(main())


def test_leaving_the_context_cancels_trials_but_lets_a_settlement_end() -> None:
    settled: list[str] = []

    async def slow_settle(ticket: TrialTicket, trajectory: Trajectory) -> None:
        await CLOCK.sleep(3)
        settled.append(f"{ticket.slot} {trajectory.outcome}")

    async def main() -> None:
        async with dispatcher_of(SleepingRunner(), limit=2) as dispatcher:
            for ticket in tickets(2):
                dispatcher.submit(Job(ticket, slow_settle, delay_seconds=5.0 * ticket.slot))
            dispatcher.fill()
            await CLOCK.sleep(11)

        assert settled == ["0 Completed", "1 Cancelled"]
        assert CLOCK.now() == 14

    run_in_virtual_time(main())


def test_an_exception_of_the_body_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with dispatcher_of(SleepingRunner(), limit=1) as dispatcher:
            submit_all(dispatcher, Desk(), 1)
            raise WaitTimeoutError(waiting_for="a test")

    with pytest.raises(WaitTimeoutError, match="a test"):
        run_in_virtual_time(main())


def test_a_settlement_that_fails_ends_the_context_with_its_own_exception() -> None:
    async def full_disk(_ticket: TrialTicket, _trajectory: Trajectory) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with dispatcher_of(SleepingRunner(), limit=2) as dispatcher:
            for ticket in tickets(2):
                dispatcher.submit(Job(ticket, full_disk, delay_seconds=100.0 * ticket.slot))
            dispatcher.fill()
            await CLOCK.sleep(10_000)

    with pytest.raises(OSError, match="No space left"):
        run_in_virtual_time(main())


def test_a_spawned_loop_is_cancelled_with_the_context() -> None:
    ended: list[float] = []

    async def loop() -> None:
        try:
            await CLOCK.sleep(1_000)
        finally:
            ended.append(CLOCK.now())

    async def main() -> None:
        async with dispatcher_of(SleepingRunner(), limit=1) as dispatcher:
            dispatcher.spawn(loop())
            await CLOCK.sleep(2)

    run_in_virtual_time(main())
    assert ended == [2]


def test_draining_names_the_trials_that_do_not_end() -> None:
    async def main() -> None:
        async with dispatcher_of(SleepingRunner(), limit=1) as dispatcher:
            submit_all(dispatcher, Desk(), 1)
            await dispatcher.drain(Deadline.after(3, CLOCK))

    with pytest.raises(WaitTimeoutError, match="1 trials to end: group-t00-a1"):
        run_in_virtual_time(main())


def test_run_all_yields_each_trial_and_shares_the_limit_with_training() -> None:
    runner, desk = SleepingRunner(), Desk()

    async def main() -> list[str]:
        async with dispatcher_of(runner, limit=2) as dispatcher:
            submit_all(dispatcher, desk, 2)
            async with aclosing(dispatcher.run_all(tickets(3, "validation"))) as trajectories:
                return [trajectory.trial_id async for trajectory in trajectories]

    assert run_in_virtual_time(main()) == [f"validation-t0{slot}-a1" for slot in range(3)]
    assert runner.most_at_once == 2
    assert desk.outcomes == {Outcome.COMPLETED: 2}


def test_run_all_retries_infrastructure_outcomes_under_new_ids() -> None:
    async def act(ticket: TrialTicket) -> Outcome:
        await CLOCK.sleep(1)
        return Outcome.ENGINE_FAILED if ticket.attempt < 2 or ticket.slot == 1 else Outcome.COMPLETED

    async def main() -> list[tuple[str, Outcome]]:
        async with dispatcher_of(SleepingRunner(act), limit=1) as dispatcher:
            return [
                (trajectory.trial_id, trajectory.outcome)
                async for trajectory in dispatcher.run_all(tickets(2, "v"), max_attempts=2)
            ]

    assert sorted(run_in_virtual_time(main())) == [
        ("v-t00-a1", Outcome.ENGINE_FAILED),
        ("v-t00-a2", Outcome.COMPLETED),
        ("v-t01-a1", Outcome.ENGINE_FAILED),
        ("v-t01-a2", Outcome.ENGINE_FAILED),
    ]


def test_trials_of_a_run_all_that_nobody_reads_any_more_are_withdrawn() -> None:
    runner = SleepingRunner()

    async def main() -> None:
        async with dispatcher_of(runner, limit=2) as dispatcher:
            async with aclosing(dispatcher.run_all(tickets(10))) as trajectories:
                async for _ in trajectories:
                    break
            await dispatcher.drain(Deadline.after(100, CLOCK))
            assert dispatcher.num_queued == 0
            assert CLOCK.now() == 10

        assert len(runner.started) < 10

    run_in_virtual_time(main())


def test_run_all_ends_when_the_dispatcher_stops() -> None:
    async def main() -> Counter[str]:
        async with dispatcher_of(SleepingRunner(), limit=1) as dispatcher, asyncio.TaskGroup() as group:

            async def stop_later() -> None:
                await CLOCK.sleep(15)
                await dispatcher.stop()

            group.create_task(stop_later())
            return Counter([trajectory.outcome async for trajectory in dispatcher.run_all(tickets(4), max_attempts=3)])

    assert run_in_virtual_time(main()) == {Outcome.COMPLETED: 1, Outcome.CANCELLED: 3}
