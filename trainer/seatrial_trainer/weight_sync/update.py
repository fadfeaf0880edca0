"""One update on many engines at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from seatrial_rollout.engine.control import EngineControl, UpdateReport
from seatrial_rollout.engine.errors import WeightUpdateError


@dataclass(slots=True)
class Updates:
    """What became of an update, by engine id."""

    reports: dict[str, UpdateReport] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def paused_seconds(self) -> float:
        """Longest pause."""
        return max((report.paused_seconds for report in self.reports.values()), default=0.0)


async def update_all(
    engines: Sequence[EngineControl], update: Callable[[EngineControl], Awaitable[UpdateReport]]
) -> Updates:
    """Update engines at the same time; one that fails does not hold up the others."""
    updates = Updates()

    async def update_one(engine: EngineControl) -> None:
        try:
            updates.reports[engine.engine_id] = await update(engine)
        except WeightUpdateError as error:
            updates.failures[engine.engine_id] = str(error)

    async with asyncio.TaskGroup() as tasks:
        for engine in engines:
            tasks.create_task(update_one(engine))
    return updates
