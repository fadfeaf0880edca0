"""Checkpoints that are written beside the steps."""

import asyncio
from dataclasses import dataclass
from typing import Any

import structlog

from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.kept import kept
from seatrial_trainer.driver.threads import in_thread

log = structlog.get_logger(__name__)


@dataclass
class CheckpointSaver:
    """Saves the policy of a stage, one checkpoint at a time.

        save ─▶ ranks hold a copy ─▶ steps go on
                      └─▶ files ─▶ digests ─▶ manifest

    Until the manifest is there the checkpoint before counts: with the logged batches it leads to the same weights.
    """

    context: StageContext
    tasks: asyncio.TaskGroup
    """Those of whoever saves; a checkpoint that cannot be written ends them."""
    prunes: bool
    """Whether checkpoints are judged by their age alone; else validation prunes, which tells the best."""
    _newest: asyncio.Task[None] | None = None

    async def save(self, version: int, state: dict[str, Any]) -> None:
        """Begin the checkpoint of a version, unless there is one; returns once the policy may change.

        Args:
            version: Weight version of the policy.
            state: State of the driver, as JSON.
        """
        checkpoints, telemetry = self.context.storage.checkpoints, self.context.telemetry
        telemetry.activity("waiting until the checkpoint before is stored")
        await self.finish()
        await asyncio.to_thread(checkpoints.settle)
        if version in checkpoints.versions():
            return
        telemetry.activity("taking a copy for a checkpoint")
        is_held = asyncio.Event()
        self._newest = self.tasks.create_task(self._write(version, state, is_held))
        await is_held.wait()

    async def finish(self) -> None:
        """Wait until the checkpoint that was begun last is written; that it fails is told by its task."""
        if self._newest is not None:
            await asyncio.wait([self._newest])

    async def tell(self) -> None:
        """Tell which checkpoints there are."""
        self.context.telemetry.checkpoints = await asyncio.to_thread(kept, self.context.storage.checkpoints)

    async def _write(self, version: int, state: dict[str, Any], is_held: asyncio.Event) -> None:
        checkpoints = self.context.storage.checkpoints
        policy = await self.context.cluster.policy()
        async with in_thread(checkpoints.writing(version, state)) as folder:
            write = await policy.hold(folder / "policy", folder / "model")
            is_held.set()
            await write()
        if self.prunes:
            await asyncio.to_thread(checkpoints.prune, self.context.spec.checkpoint.keep)
        await self.tell()
        log.info("saved a checkpoint", version=version)
