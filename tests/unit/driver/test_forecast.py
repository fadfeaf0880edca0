"""What is said of trials to come, and when."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from seatrial_trainer.driver.forecast import Forecast
from seatrial_trainer.scheduling.dispatcher import Planned
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time

CLOCK = LoopClock()


class Look:
    """Trials to come that a test sets, and what was said of them."""

    def __init__(self) -> None:
        self.upcoming: Counter[Planned] = Counter()
        self.told: list[tuple[float, dict[str, int]]] = []

    async def tell(self, trials: Mapping[str, int]) -> None:
        """Note it, with the time."""
        self.told.append((CLOCK.now(), dict(trials)))

    async def after(self, seconds: float, **upcoming: int) -> None:
        """Let time pass, then let other trials come."""
        await CLOCK.sleep(seconds)
        self.upcoming = Counter({("train", task): count for task, count in upcoming.items()})


def test_trials_are_counted_by_world_and_told_when_that_changes_and_once_a_minute() -> None:
    look = Look()

    async def main() -> None:
        forecast = Forecast(lambda: look.upcoming, lambda _, task: task[0], look.tell, CLOCK)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(forecast.run())
            await look.after(7, a1=4, a2=4, b1=4)
            await look.after(13, a1=8, b2=4)  # other tasks of the same worlds
            await look.after(61, b2=2)
            await look.after(20)
            await look.after(20)
            running.cancel()

    run_in_virtual_time(main())
    assert look.told == [
        (5, {}),
        (10, {"a": 8, "b": 4}),
        (70, {"a": 8, "b": 4}),
        (85, {"a": 0, "b": 2}),
        (105, {"b": 0}),
    ]
