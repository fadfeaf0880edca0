"""Engines and their pool as weight synchronisation sees them, without vLLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from seatrial_rollout.engine.control import EngineControl, EngineStatus, UpdateReport, WeightFiles
from seatrial_rollout.engine.errors import WeightUpdateError
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.engine.tensors import TransferPlan


class FakeEngine(EngineControl):
    """An engine that follows the calls it gets, and fails where a test says so."""

    def __init__(self, name: str, *, num_workers: int = 1, version: int = 0) -> None:
        self.name = name
        self.state = EngineStatus(version, f"{name}-server-1", num_workers)
        self.joined: list[Mapping[str, Any]] = []
        self.fails_at: str = ""
        self.expected = version
        self.num_left = 0
        self.files: Path | None = None
        self.digests: dict[str, str] = {}

    @property
    @override
    def engine_id(self) -> str:
        return self.name

    def replace_server(self, name: str, version: int = 0) -> None:
        """Get another server, with old weights."""
        self.state = EngineStatus(version, name, self.state.num_workers)

    def _maybe_fail(self, step: str) -> None:
        if self.fails_at == step:
            self.fails_at = ""
            raise WeightUpdateError(engine_id=self.name, version=-1, detail=f"failed at {step}")

    @override
    async def status(self) -> EngineStatus:
        return self.state

    @override
    async def join_transfer(self, rendezvous: Mapping[str, Any], timeout_seconds: float) -> None:
        self._maybe_fail("join")
        self.joined.append(rendezvous)

    @override
    async def stage(self, plan: TransferPlan, timeout_seconds: float) -> None:
        self._maybe_fail("stage")

    @override
    async def load_staged(
        self, update_info: Mapping[str, Any], version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        self._maybe_fail("load")
        self.state = EngineStatus(version, self.state.server_id, self.state.num_workers)
        return UpdateReport(version, paused_seconds=0.25)

    @override
    async def leave_transfer(self, timeout_seconds: float) -> None:
        self.num_left += 1

    @override
    async def expect(self, version: int, files: WeightFiles | None = None) -> None:
        self.expected = version

    @override
    async def load_files(
        self, path: Path, version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        self._maybe_fail("load")
        self.files = path
        self.state = EngineStatus(version, self.state.server_id, self.state.num_workers)
        return UpdateReport(version, paused_seconds=0.25)

    @override
    async def metrics(self) -> PoolMetrics:
        return PoolMetrics()

    @override
    async def checksums(self, timeout_seconds: float) -> dict[str, str]:
        self._maybe_fail("checksums")
        return self.digests


class FakePool:
    """Engines that are up."""

    def __init__(self, *engines: FakeEngine) -> None:
        self.engines = list(engines)
        self.version = 0
        self.files: WeightFiles | None = None

    async def publish(self, version: int, files: WeightFiles | None = None) -> None:
        """Tell all engines."""
        self.version = version
        self.files = files
        for engine in self.engines:
            await engine.expect(version)
