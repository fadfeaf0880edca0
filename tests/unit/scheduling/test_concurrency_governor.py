from collections.abc import Callable

from structlog.testing import capture_logs

from seatrial_api.base import Auto
from seatrial_api.errors import TransientError
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.concurrency import Ceilings, EngineLoad
from seatrial_trainer.scheduling.dispatcher import Job, TrialDispatcher
from seatrial_trainer.scheduling.governor import ConcurrencyGovernor
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time

CLOCK = LoopClock()


class LongTrials:
    """Trials that take a hundred seconds."""

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """Run one trial."""
        await CLOCK.sleep(100)
        return ticket.without_result(Outcome.SANDBOX_FAILED, "")


async def ignore(_ticket: TrialTicket, _trajectory: Trajectory) -> None:
    pass


def limits_after(looks: int, read: Callable[[], EngineLoad], *wanted: Auto | int, ceilings: Ceilings) -> list[int]:
    """Limits before the first look and after each one, with trials enough to fill every place.

    What is `wanted` comes into force look by look; the last of it stays.
    """
    limits: list[int] = []
    concurrencies = wanted or ("Auto",)

    async def read_load() -> EngineLoad:
        return read()

    async def main() -> None:
        async with TrialDispatcher(LongTrials(), limit=1, trial_timeout_seconds=1_000, clock=CLOCK) as dispatcher:
            governor = ConcurrencyGovernor(
                dispatcher,
                read_load,
                concurrency=lambda: concurrencies[min(len(limits), len(concurrencies) - 1)],
                ceilings=ceilings,
                interval_seconds=5.0,
                clock=CLOCK,
            )
            dispatcher.spawn(governor.run())
            for slot in range(1_000):
                dispatcher.submit(Job(TrialTicket("group", slot, "task", "any", "train", 0), ignore))
            dispatcher.fill()
            limits.append(dispatcher.limit)
            await CLOCK.sleep(0.5)
            for _ in range(looks):
                await CLOCK.sleep(5)
                limits.append(dispatcher.limit)

    run_in_virtual_time(main())
    return limits


def test_auto_starts_at_the_lowest_ceiling_and_grows_past_the_estimated_one_while_the_cache_has_room() -> None:
    limits = limits_after(
        4, lambda: EngineLoad(0.2, 0, 1_000), ceilings=Ceilings(algorithmic=30, systems=16, places=100)
    )

    assert limits == [16, 20, 25, 30, 30]


def test_places_bind_auto_whatever_the_cache_says() -> None:
    assert limits_after(2, lambda: EngineLoad(0.0, 0, 1_000), ceilings=Ceilings(algorithmic=30, places=4)) == [4, 4, 4]


def test_a_fixed_number_is_kept_whatever_the_cache_says() -> None:
    assert limits_after(2, lambda: EngineLoad(0.99, 9, 1_000), 7, ceilings=Ceilings(30)) == [7, 7, 7]


def test_engines_that_do_not_tell_their_load_leave_the_limit_and_a_warning() -> None:
    def read() -> EngineLoad:
        raise TransientError("engine 0 restarts")

    with capture_logs() as logs:
        limits = limits_after(2, read, ceilings=Ceilings(8))

    assert limits == [8, 8, 8]
    assert {entry["error"] for entry in logs} == {"engine 0 restarts"}


def test_a_number_that_is_set_while_trials_run_holds_from_the_next_look() -> None:
    limits = limits_after(4, lambda: EngineLoad(0.2, 0, 1_000), "Auto", 5, 5, 9, ceilings=Ceilings(20, 16))

    assert limits == [16, 5, 5, 9, 9]


def test_auto_goes_on_from_the_number_that_it_replaces() -> None:
    limits = limits_after(3, lambda: EngineLoad(0.2, 0, 1_000), 8, 8, "Auto", ceilings=Ceilings(20, 16))

    assert limits == [8, 8, 10, 12]


def test_a_number_holds_although_the_engines_do_not_tell_their_load() -> None:
    def read() -> EngineLoad:
        raise TransientError("engine 0 restarts")

    with capture_logs():
        assert limits_after(2, read, "Auto", 3, ceilings=Ceilings(8)) == [8, 3, 3]
