import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from seatrial_api.clock import Deadline
from seatrial_api.errors import InvalidInputError, WaitTimeoutError
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.concurrency import Ceilings
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.groups import FinishedGroup, GroupResult
from seatrial_trainer.scheduling.sampler import SampledTask, Sampler
from seatrial_trainer.scheduling.scheduler import RolloutsFailingError, Scheduler, SchedulerSettings, SchedulerState
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time

CLOCK = LoopClock()
type Act = Callable[[TrialTicket], tuple[float, Outcome]]


class ScriptedRunner:
    """Runs each trial for as long, and to the outcome, that a script says."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.started: list[str] = []

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """Run one trial."""
        self.started.append(ticket.trial_id)
        seconds, outcome = self.act(ticket)
        await CLOCK.sleep(seconds)
        reward = None if outcome.is_infrastructure else 1.0
        return ticket.without_result(Outcome.CANCELLED, "as scripted").model_copy(
            update={"outcome": outcome, "reward": reward}
        )


class Stage:
    """A scheduler over scripted trials, groups of two trials."""

    def __init__(
        self, act: Act, *, batch_size: int = 2, max_staleness: int = 1, num_tasks: int = 10, incarnation: int = 0
    ) -> None:
        self.runner = ScriptedRunner(act)
        self.dispatcher = TrialDispatcher(self.runner, limit=100, trial_timeout_seconds=10_000.0, clock=CLOCK)
        self.spooled: list[FinishedGroup] = []
        self.ended: list[Trajectory] = []
        self.sampler = Sampler([SampledTask(f"task-{number}", "any") for number in range(num_tasks)])
        self.scheduler = Scheduler(
            SchedulerSettings(
                "train",
                AssemblyRules(group_size=2, min_valid=1, max_attempts=2, max_refills=1, retry_seconds=1.0),
                batch_size=batch_size,
                max_staleness=max_staleness,
                num_steps=100,
                incarnation=incarnation,
                max_consecutive_losses=3,
            ),
            self.sampler,
            self.dispatcher,
            on_group_finished=self.spool,
            on_trial=self.ended.append,
            clock=CLOCK,
        )

    async def spool(self, group: FinishedGroup) -> None:
        """Take a second to store a group."""
        await CLOCK.sleep(1.0)
        self.spooled.append(group)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Scheduler]:
        """The scheduler, started."""
        async with self.dispatcher:
            self.scheduler.start()
            yield self.scheduler


def quick(_: TrialTicket) -> tuple[float, Outcome]:
    return 10.0, Outcome.COMPLETED


def soon() -> Deadline:
    return Deadline.after(1_000.0, CLOCK)


def group_number(group_id: str) -> int:
    return int(group_id.rsplit("-g", 1)[1])


def test_a_batch_holds_whole_groups_that_were_stored_before_they_became_visible() -> None:
    stage = Stage(quick)

    async def main() -> None:
        async with stage.running() as scheduler:
            batch = await scheduler.take_batch(soon())
            assert CLOCK.now() == 11.0
            assert all(group in stage.spooled for group in batch.groups)
            assert [len(group.trajectories) for group in batch.groups] == [2, 2]
            assert batch.wait_seconds == 11.0
            assert batch.staleness == (0, 0)

    run_in_virtual_time(main())


def test_a_store_that_fails_ends_the_stage_with_its_own_error_and_shows_no_group() -> None:
    stage = Stage(quick)

    async def full_disk(_: FinishedGroup) -> None:
        raise OSError(28, "No space left on device")

    stage.scheduler._on_group_finished = full_disk

    async def main() -> None:
        async with stage.running() as scheduler:
            await scheduler.take_batch(soon())

    with pytest.raises(OSError, match="No space left"):
        run_in_virtual_time(main())
    assert stage.scheduler._buffer.num_finished == 0


def test_new_groups_start_only_when_the_version_advances() -> None:
    stage = Stage(quick)

    async def main() -> None:
        async with stage.running() as scheduler:
            await scheduler.take_batch(soon())
            await CLOCK.sleep(100)
            assert len(stage.runner.started) == 8
            scheduler.advance(1)
            await CLOCK.sleep(1)
            assert len(stage.runner.started) == 12

    run_in_virtual_time(main())


def test_a_step_waits_for_the_group_that_is_due_and_says_for_which() -> None:
    def act(ticket: TrialTicket) -> tuple[float, Outcome]:
        return (500.0 if group_number(ticket.group_id) == 0 else 10.0), Outcome.COMPLETED

    stage = Stage(act)

    async def main() -> None:
        async with stage.running() as scheduler:
            first = await scheduler.take_batch(soon())
            assert {group_number(group.group_id) for group in first.groups} == {1, 2}
            scheduler.advance(1)
            with pytest.raises(WaitTimeoutError) as error:
                await scheduler.take_batch(Deadline.after(60.0, CLOCK))
            assert "step 1: 3 groups finished of 2 wanted, 1 in flight" in str(error.value)
            assert "train-r0-g000000 (task task-" in str(error.value)
            assert "started at version 0 71 s ago, due at step 1, 2 trials to go" in str(error.value)
            second = await scheduler.take_batch(soon())
            assert 0 in {group_number(group.group_id) for group in second.groups}
            assert max(second.staleness) == 1
            assert second.hold_seconds == pytest.approx(501.0 - 71.0)
            assert scheduler.snapshot(Ceilings(8)).staleness_hold_seconds == second.hold_seconds

    run_in_virtual_time(main())


def test_failed_trials_are_retried_under_new_ids_and_stay_out_of_the_group() -> None:
    def act(ticket: TrialTicket) -> tuple[float, Outcome]:
        fails = ticket.slot == 0 and ticket.attempt == 1
        return 10.0, Outcome.SANDBOX_FAILED if fails else Outcome.COMPLETED

    stage = Stage(act)

    async def main() -> None:
        async with stage.running() as scheduler:
            batch = await scheduler.take_batch(soon())
        for group in batch.groups:
            assert [one.trial_id for one in group.trajectories] == [
                f"{group.group_id}-t00-a2",
                f"{group.group_id}-t01-a1",
            ]
        assert Counter(one.trial_id for one in stage.ended) == Counter(stage.runner.started)

    run_in_virtual_time(main())


def test_a_lost_group_is_replaced_at_the_current_version_and_its_task_is_tried_again() -> None:
    def act(ticket: TrialTicket) -> tuple[float, Outcome]:
        fails = group_number(ticket.group_id) == 0
        return 10.0, Outcome.SANDBOX_FAILED if fails else Outcome.COMPLETED

    stage = Stage(act)

    async def main() -> None:
        async with stage.running() as scheduler:
            lost_task = stage.scheduler._buffer.open_groups[0].task
            await scheduler.take_batch(soon())
            scheduler.advance(1)
            batch = await scheduler.take_batch(soon())
            while all(group.task != lost_task for group in batch.groups):
                scheduler.advance(batch.step + 1)
                batch = await scheduler.take_batch(soon())
            (replacement,) = (group for group in batch.groups if group.task == lost_task)
            assert replacement.credit.start_version == 1
            snapshot = scheduler.snapshot(Ceilings(8))
            assert snapshot.groups[GroupResult.REFILLS_SPENT] == 1
            assert sum(snapshot.staleness.values()) == snapshot.groups[GroupResult.TRAINED]

    run_in_virtual_time(main())


def test_a_broken_task_is_retired() -> None:
    broken = "task-3"

    def act(ticket: TrialTicket) -> tuple[float, Outcome]:
        return 10.0, Outcome.VERIFIER_FAILED if ticket.task == broken else Outcome.COMPLETED

    stage = Stage(act)

    async def main() -> None:
        async with stage.running() as scheduler:
            for version in range(20):
                await scheduler.take_batch(soon())
                scheduler.advance(version + 1)
            assert scheduler.snapshot(Ceilings(8)).groups[GroupResult.TASK_BROKEN] == 1
            assert scheduler.state().sampler.retired == [broken]

    run_in_virtual_time(main())
    tries = {trial.rsplit("-t", 1)[0] for trial in stage.runner.started}
    assert len(tries) > 40
    assert len({one.group_id for one in stage.ended if one.task == broken}) == 1


def test_when_every_task_is_broken_the_stage_says_so() -> None:
    stage = Stage(lambda _: (1.0, Outcome.VERIFIER_FAILED), max_staleness=0, num_tasks=1)

    async def main() -> None:
        async with stage.running() as scheduler:
            await scheduler.take_batch(soon())

    with pytest.raises(InvalidInputError, match="every task turned out to be broken"):
        run_in_virtual_time(main())


def test_infrastructure_that_loses_every_group_ends_the_stage_with_the_cause() -> None:
    stage = Stage(lambda _: (1.0, Outcome.SANDBOX_FAILED))

    async def main() -> None:
        async with stage.running() as scheduler:
            await scheduler.take_batch(soon())

    with pytest.raises(RolloutsFailingError, match=r"last 3 groups were all lost .* SandboxFailed: as scripted"):
        run_in_virtual_time(main())


def test_trained_groups_teach_the_sampler_their_pass_rates() -> None:
    stage = Stage(quick)

    async def main() -> None:
        async with stage.running() as scheduler:
            batch = await scheduler.take_batch(soon())
            assert scheduler.state().sampler.pass_rates == {group.task: 1.0 for group in batch.groups}

    run_in_virtual_time(main())


def test_the_tasks_that_the_next_weights_let_start_are_foreseen() -> None:
    stage = Stage(quick)

    async def main() -> None:
        async with stage.running() as scheduler:
            await scheduler.take_batch(soon())
            ahead = stage.dispatcher.upcoming()
            scheduler.advance(1)
            started = [group.task for group in stage.scheduler._buffer.open_groups]
            assert ahead == Counter({("train", task): 2 for task in started})

    run_in_virtual_time(main())


def test_a_stopped_stage_keeps_its_groups_in_flight_for_the_next_attempt() -> None:
    stage = Stage(lambda _: (math.inf, Outcome.COMPLETED))

    async def main() -> SchedulerState:
        async with stage.running() as scheduler:
            await CLOCK.sleep(5)
            in_flight = await stage.dispatcher.stop()
            assert len(in_flight) == 8
            return scheduler.state()

    state = run_in_virtual_time(main())
    assert [group.group_id for group in state.untrained] == [f"train-r0-g00000{number}" for number in range(4)]
    assert {one.outcome for one in stage.ended} == {Outcome.CANCELLED}


def test_a_resumed_stage_trains_stored_groups_and_restarts_the_others_under_new_ids() -> None:
    def act(ticket: TrialTicket) -> tuple[float, Outcome]:
        return (500.0 if group_number(ticket.group_id) in {0, 5} else 10.0), Outcome.COMPLETED

    async def first_attempt() -> tuple[SchedulerState, set[str], list[str]]:
        async with before.running() as scheduler:
            batch = await scheduler.take_batch(soon())
            state = scheduler.state()
            scheduler.advance(1)
            await CLOCK.sleep(50)
            return (
                state,
                {group.group_id for group in batch.groups},
                [g.task for g in before.scheduler._buffer.open_groups],
            )

    async def second_attempt() -> None:
        stored = [group for group in before.spooled if group.group_id not in trained]
        reread = [FinishedGroup.from_spool(group.trajectories, max_staleness=1) for group in stored]
        assert reread == stored
        restored = SchedulerState.model_validate_json(state.model_dump_json())
        assert after.scheduler.restore(restored, version=1, spooled=reread) == []
        async with after.running() as scheduler:
            restarted = after.scheduler._buffer.open_groups
            assert [group.task for group in restarted] == interrupted
            assert {group.credit.start_version for group in restarted} == {1}
            batch = await scheduler.take_batch(soon())
            assert {group.group_id for group in batch.groups} == {"train-r0-g000003", "train-r0-g000004"}
            assert batch.staleness == (1, 0)
            assert all(trial.startswith("train-r1-") for trial in after.runner.started)

    before, after = Stage(act), Stage(quick, incarnation=1)
    state, trained, interrupted = run_in_virtual_time(first_attempt())
    assert trained == {"train-r0-g000001", "train-r0-g000002"}
    assert len(interrupted) == 2
    run_in_virtual_time(second_attempt())


@pytest.mark.parametrize("num_stored", [1, 2, 3])
def test_a_resumed_stage_trains_a_batch_in_the_order_of_one_that_was_not_stopped(num_stored: int) -> None:
    def tasks_of_step(stage: Stage, spooled: list[FinishedGroup]) -> list[str]:
        async def main() -> list[str]:
            stage.scheduler.restore(SchedulerState(), version=0, spooled=spooled)
            async with stage.running() as scheduler:
                return [group.task for group in (await scheduler.take_batch(soon())).groups]

        return run_in_virtual_time(main())

    calm = Stage(quick, batch_size=4, max_staleness=0)
    expected = tasks_of_step(calm, [])
    stored = sorted(calm.spooled, key=lambda group: group.group_id)[-num_stored:]  # the first ones were in flight

    assert tasks_of_step(Stage(quick, batch_size=4, max_staleness=0, incarnation=1), stored) == expected


def test_a_resumption_under_a_tighter_bound_tries_again_what_it_may_not_train() -> None:
    before, after = Stage(quick, max_staleness=3), Stage(quick, max_staleness=0, incarnation=1)

    async def first_attempt() -> tuple[SchedulerState, list[FinishedGroup]]:
        async with before.running() as scheduler:
            batch = await scheduler.take_batch(soon())
            await CLOCK.sleep(5)
            return scheduler.state(), [group for group in before.spooled if group not in batch.groups]

    state, stored = run_in_virtual_time(first_attempt())
    reread = [FinishedGroup.from_spool(group.trajectories, max_staleness=0) for group in stored]

    refused = after.scheduler.restore(state, version=1, spooled=reread)

    assert len(refused) == len(stored) == 6
    assert [task.name for task in after.sampler.peek(6)] == [group.task for group in refused]
    again = Stage(quick, max_staleness=0, incarnation=2)
    assert again.scheduler.restore(after.scheduler.state(), version=1, spooled=reread) == []
    assert [task.name for task in again.sampler.peek(6)] == [group.task for group in refused]


def test_the_snapshot_tells_where_everything_is() -> None:
    stage = Stage(quick)

    async def main() -> None:
        async with stage.running() as scheduler:
            stage.dispatcher.limit = 6
            await CLOCK.sleep(5)
            running = scheduler.snapshot(Ceilings(scheduler.algorithmic_ceiling, systems=6))
            assert (running.trials_in_flight, running.trials_queued, running.groups_in_flight) == (8, 0, 4)
            assert (running.concurrency, running.ceilings.algorithmic, running.ceilings.lowest) == (6, 8, 6)
            await scheduler.take_batch(soon())
            done = scheduler.snapshot(Ceilings(8))
            assert (done.trials_in_flight, done.groups_in_flight, done.groups_finished) == (0, 0, 2)
            assert done.outcomes == {Outcome.COMPLETED: 8}
            assert done.buffer_wait_seconds == 6.0

    run_in_virtual_time(main())
