"""Weight synchronisation over safetensors files on storage that the engines reach."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import override

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_rollout.engine.control import EngineControl, UpdateReport, WeightFiles
from seatrial_trainer.weight_sync.pool import Pool
from seatrial_trainer.weight_sync.protocol import SyncReport, WeightSync, WeightSyncError
from seatrial_trainer.weight_sync.update import compare_weights, update_all

PolicyExport = Callable[[Path], Awaitable[object]]
"""Writes the policy's weights as `*.safetensors` under Hugging Face names into an empty folder."""


class FilesSync(WeightSync):
    """Exports the policy once, then lets all engines load the files at the same time.

        policy ── export ──▶ directory/weights-<version>-… ──▶ each engine: pause, load, resume

    Engines generate during the export. An engine that is lost meanwhile loads the files by itself when it is back.
    The folder before the last is removed once all engines have left it.
    """

    def __init__(
        self,
        pool: Pool,
        policy_export: PolicyExport,
        directory: Path,
        *,
        clear_kv_cache: bool = False,
        timeout_seconds: float = 300.0,
        verify_checksums: bool = False,
    ) -> None:
        self._pool = pool
        self._export = policy_export
        self._directory = directory
        self._clear_kv_cache = clear_kv_cache
        self._timeout_seconds = timeout_seconds
        self._verify_checksums = verify_checksums

    @override
    async def publish(self, version: int) -> SyncReport:
        started = SYSTEM_CLOCK.now()
        deadline = Deadline.after(self._timeout_seconds)
        folder, num_bytes = await self._export_weights(version, deadline)

        def load(engine: EngineControl) -> Awaitable[UpdateReport]:
            return engine.load_files(
                folder, version, clear_kv_cache=self._clear_kv_cache, timeout_seconds=deadline.remaining
            )

        updates = await update_all(self._pool.engines, load)
        if not updates.reports:
            raise WeightSyncError(version=version, failures=list(updates.failures.values()))
        if self._verify_checksums:
            await compare_weights(self._pool.engines, updates, version, deadline.remaining)
        await self._pool.publish(version, WeightFiles(version, folder))
        await asyncio.to_thread(_remove_others, self._directory, folder)
        return SyncReport(
            seconds=SYSTEM_CLOCK.now() - started,
            paused_seconds=updates.paused_seconds,
            bytes=num_bytes,
            num_engines=len(updates.reports),
            failures=tuple(updates.failures.values()),
        )

    @override
    async def repair(self) -> int:
        return 0  # engines load the published files by themselves

    @override
    async def close(self) -> None:
        """Nothing to let go of: the last folder stays for engines that are replaced."""

    async def _export_weights(self, version: int, deadline: Deadline) -> tuple[Path, int]:
        try:
            async with asyncio.timeout(deadline.remaining):
                folder = await asyncio.to_thread(_new_folder, self._directory, version)
                await self._export(folder)
                return folder, await asyncio.to_thread(_size, folder)
        except TimeoutError:
            raise WeightSyncError(version=version, failures=["the policy's export took too long"]) from None


def _new_folder(directory: Path, version: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"weights-{version}-", dir=directory))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _remove_others(directory: Path, folder: Path) -> None:
    for other in directory.glob("weights-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
