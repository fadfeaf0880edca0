"""What weight synchronisation asks of an engine, wherever it lives."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.engine.tensors import TransferPlan


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Weights on storage that every engine reaches."""

    version: int
    path: Path | None = None
    """Folder with safetensors files; None for the model's own."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One weight update of one engine."""

    version: int
    paused_seconds: float
    """Time in which the engine generated nothing for it."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine at one moment."""

    version: int
    """Weight version that the server holds."""
    server_id: str
    """Changes whenever the server is replaced; empty while there is none."""
    num_workers: int = 1
    """Workers of the server, each a rank of a collective."""


class EngineControl(Protocol):
    """One engine's weights and state. Its `Engine` keeps this in its process, a `RemoteEngine` from the driver.

    Weight methods raise `WeightUpdateError`; `load_files` and `load_staged` also when the engine itself is lost.
    """

    @property
    def engine_id(self) -> str:
        """Name of the engine, kept by its replacement."""
        ...

    async def load_files(
        self, path: Path, version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        """Load a safetensors folder under running requests, and expect its version from now on."""
        ...

    async def join_transfer(self, rendezvous: Mapping[str, Any], timeout_seconds: float) -> None:
        """Begin to enter a collective with the trainer; requests go on meanwhile."""
        ...

    async def stage(self, plan: TransferPlan, timeout_seconds: float) -> None:
        """Begin to receive weights into host memory; requests go on meanwhile."""
        ...

    async def load_staged(
        self, update_info: Mapping[str, Any], version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        """Load what the collective brought under running requests, and expect its version from now on."""
        ...

    async def leave_transfer(self, timeout_seconds: float) -> None:
        """Leave the collective; never raises for an engine that is gone."""
        ...

    async def expect(self, version: int, files: WeightFiles | None = None) -> None:
        """Admit requests under this weight version only; load it from files, now or later, if it is not there."""
        ...

    async def status(self) -> EngineStatus:
        """How the engine is."""
        ...

    async def metrics(self) -> PoolMetrics:
        """What the engine does now and has done since its start."""
        ...

    async def checksums(self, timeout_seconds: float) -> dict[str, str]:
        """SHA-256 of every weight under vLLM's own names."""
        ...
