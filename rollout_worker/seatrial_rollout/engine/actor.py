"""The Ray actor that holds one engine, and the handle by which the driver talks to it."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, override

import ray
import structlog
from ray.exceptions import RayError, RayTaskError

from seatrial_rollout.engine.control import EngineControl, EngineStatus, UpdateReport, WeightFiles
from seatrial_rollout.engine.engine import Engine
from seatrial_rollout.engine.errors import WeightUpdateError
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.launch import ServerLaunch
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.engine.supervision import HangLimits
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder

_MARGIN_SECONDS = 30.0
"""For the actor to notice its own deadline and say so."""
_CALL_SECONDS = 60.0

log = structlog.get_logger()


class EngineActor:
    """An engine in a process of its own, on the node where Ray puts it.

    When the actor's process ends, the vLLM server ends with it. Ray does not restart the actor: the pool makes
    another, which starts with the weights of that moment.
    """

    def __init__(
        self,
        launch: ServerLaunch,
        *,
        token: str,
        weights: WeightFiles,
        limits: HangLimits,
        files: SharedFolder = SHARED_FOLDER,
    ) -> None:
        self._engine = Engine(launch, token=token, weights=weights, limits=limits)
        self._weights = weights
        self._files = files

    async def start(self, port: int = 0) -> EngineAddress:
        """Start the engine on the node's address; the port is a wish."""
        for folder in _folders([self._weights]):
            await asyncio.to_thread(self._files.bring, folder)
        await self._engine.start(ray.util.get_node_ip_address(), port)
        return self._engine.address

    async def run(self) -> None:
        """Supervise the server; ends only with an error."""
        await self._engine.run()

    async def stop(self) -> None:
        """End the server and the gateway."""
        await self._engine.stop()

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of `EngineControl`; the files of weights that it names are brought first."""
        for folder in _folders(args):
            await asyncio.to_thread(self._files.bring, folder)
        return await getattr(self._engine, method)(*args, **kwargs)


class RemoteEngine(EngineControl):
    """An engine as the driver sees it: calls to the actor that holds it.

    A lost actor raises `WeightUpdateError` like an engine that cannot load: the publisher goes on without it.
    """

    def __init__(self, actor: Any, address: EngineAddress) -> None:
        self.actor = actor
        """Handle of the `EngineActor`."""
        self.address = address
        """Where clients reach the engine."""

    @property
    @override
    def engine_id(self) -> str:
        return self.address.engine_id

    @override
    async def load_files(
        self, path: Path, version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        options = {"clear_kv_cache": clear_kv_cache, "timeout_seconds": timeout_seconds}
        report: UpdateReport = await self._update("load_files", version, timeout_seconds, path, version, **options)
        return report

    @override
    async def join_transfer(self, rendezvous: Mapping[str, Any], timeout_seconds: float) -> None:
        await self._update("join_transfer", -1, timeout_seconds, rendezvous, timeout_seconds)

    @override
    async def stage(self, plan: TransferPlan, timeout_seconds: float) -> None:
        await self._update("stage", -1, timeout_seconds, plan, timeout_seconds)

    @override
    async def load_staged(
        self, update_info: Mapping[str, Any], version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        options = {"clear_kv_cache": clear_kv_cache, "timeout_seconds": timeout_seconds}
        report: UpdateReport = await self._update(
            "load_staged", version, timeout_seconds, update_info, version, **options
        )
        return report

    @override
    async def leave_transfer(self, timeout_seconds: float) -> None:
        try:
            await self._call("leave_transfer", timeout_seconds + _MARGIN_SECONDS, timeout_seconds)
        except (RayError, TimeoutError):
            log.warning("a lost engine left its collective", engine=self.engine_id)

    @override
    async def expect(self, version: int, files: WeightFiles | None = None) -> None:
        await self._call("expect", _CALL_SECONDS, version, files)

    @override
    async def status(self) -> EngineStatus:
        try:
            status: EngineStatus = await self._call("status", _CALL_SECONDS)
        except (RayError, TimeoutError):
            return EngineStatus(version=-1, server_id="")
        return status

    @override
    async def metrics(self) -> PoolMetrics:
        metrics: PoolMetrics = await self._call("metrics", _CALL_SECONDS)
        return metrics

    @override
    async def checksums(self, timeout_seconds: float) -> dict[str, str]:
        digests: dict[str, str] = await self._call("checksums", timeout_seconds + _MARGIN_SECONDS, timeout_seconds)
        return digests

    async def _update(self, method: str, version: int, timeout_seconds: float, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return await self._call(method, timeout_seconds + _MARGIN_SECONDS, *args, **kwargs)
        except WeightUpdateError as error:
            raise error.cause if isinstance(error, RayTaskError) else error from None  # without the actor's traceback
        except (RayError, TimeoutError) as error:
            detail = f"the actor is lost or silent: {type(error).__name__}"
            raise WeightUpdateError(engine_id=self.engine_id, version=version, detail=detail) from error

    async def _call(self, method: str, timeout_seconds: float, /, *args: Any, **kwargs: Any) -> Any:
        async with asyncio.timeout(timeout_seconds):
            return await self.actor.call.remote(method, *args, **kwargs)


def _folders(arguments: Iterable[Any]) -> Iterator[Path]:
    """Folders with weights among what an engine is told."""
    for argument in arguments:
        match argument:
            case Path() as folder:
                yield folder
            case WeightFiles(path=Path() as folder):
                yield folder
            case _:
                pass
