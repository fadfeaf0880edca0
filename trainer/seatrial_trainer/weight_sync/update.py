"""One update on many engines at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import structlog

from seatrial_rollout.engine.control import EngineControl, UpdateReport
from seatrial_rollout.engine.errors import WeightUpdateError
from seatrial_trainer.weight_sync.protocol import WeightSyncError

_NUM_NAMED = 3

log = structlog.get_logger(__name__)


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


async def compare_weights(
    engines: Sequence[EngineControl], updates: Updates, version: int, timeout_seconds: float
) -> None:
    """See that all engines that took an update hold the same weights, by SHA-256 of each.

    An engine that was lost since then is not compared: it gets its weights anew.

    Raises:
        WeightSyncError: they do not, with the names of some that differ.
    """
    held: dict[str, dict[str, str]] = {}

    async def ask(engine: EngineControl) -> None:
        try:
            held[engine.engine_id] = await engine.checksums(timeout_seconds)
        except Exception as error:  # noqa: BLE001  a comparison is no reason to end a run
            log.warning("an engine's weights are not compared", engine=engine.engine_id, error=repr(error))

    async with asyncio.TaskGroup() as tasks:
        for engine in engines:
            if engine.engine_id in updates.reports:
                tasks.create_task(ask(engine))
    failures = []
    for (first, expected), (other, digests) in pairwise(sorted(held.items())):
        if different := sorted({name for name, _ in expected.items() ^ digests.items()}):
            some = ", ".join(different[:_NUM_NAMED])
            failures.append(f"{other} and {first} differ in {len(different)} weights: {some}")
    if failures:
        raise WeightSyncError(version=version, failures=failures)
