"""All engines of a run: started together, replaced one by one."""

import asyncio
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import ray
import structlog
from ray.exceptions import RayError

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import InvalidInputError
from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.spec.model import ModelSpec
from seatrial_api.spec.rollout import EngineSpec
from seatrial_rollout.engine.actor import EngineActor, RemoteEngine
from seatrial_rollout.engine.control import WeightFiles
from seatrial_rollout.engine.errors import EngineError
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.launch import ServerLaunch
from seatrial_rollout.engine.metrics import PoolMetrics, combine, retired
from seatrial_rollout.engine.supervision import DEFAULT_HANG_LIMITS, HangLimits
from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder

_SCHEDULING_SECONDS = 300.0
"""For Ray to find a place for an actor, on top of the time that vLLM may take."""
_MAX_FAILED_STARTS = 5
_BACK_OFF_SECONDS = 5.0
_STOP_SECONDS = 20.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What a pool needs beside the spec."""

    work_dir: Path
    """Folder for the engines' logs."""
    context_length: int | None = None
    """Tokens of prompt and output together; the model's training context length if empty."""
    device: Literal["cpu", "cuda"] = "cpu"
    weight_transfer: Literal["gloo", "nccl"] = "gloo"
    """Collective that the engines are made ready for."""
    limits: HangLimits = DEFAULT_HANG_LIMITS
    actor_options: dict[str, Any] = field(default_factory=dict)
    """Ray options of every engine actor: resources, placement group, scheduling strategy."""
    names: tuple[str, ...] = ()
    """Names of the engines; `engine-0` and so on if empty."""
    files: SharedFolder = SHARED_FOLDER
    """How weights that are published as files reach the engines' nodes."""
    tells_experts: bool = False
    """Whether engines say which experts each token went to."""


class EnginePool:
    """Engines by name. Call `start`, keep `run` in a task group, and `stop` at the end.

        start: one actor per engine, all at once; returns when every one answers
        run:   one loop per engine: waits for the actor's end, then makes another with the same name, and with the
               same address where it lands on the same node
        stop:  ends all

    A replacement starts from the last weights published as files, and admits requests only if these are current.
    """

    def __init__(
        self, spec: EngineSpec, model: ModelSpec, model_path: Path, options: PoolOptions, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Make a pool without engines.

        Raises:
            InvalidInputError: engines on this device cannot say which experts tokens went to, and are asked to.
        """
        if options.tells_experts and options.device == "cpu":
            msg = "trainer.routerReplay: vLLM says only on GPUs which experts it chose (Model Runner V2); set false"
            raise InvalidInputError(msg)
        self._spec = spec
        self._model = model
        self._model_path = model_path
        self._options = options
        self._clock = clock
        self._token = secrets.token_urlsafe(32)
        self._engines: dict[str, RemoteEngine] = {}
        self._names = list(options.names) or [f"engine-{index}" for index in range(spec.replicas)]
        self._files = WeightFiles(version=0)
        self._version = 0
        self._retired = PoolMetrics()
        self._last: dict[str, PoolMetrics] = {}

    @property
    def version(self) -> int:
        """Weight version under which engines admit requests."""
        return self._version

    @property
    def engines(self) -> list[RemoteEngine]:
        """The engines that are up, in the order of their names."""
        return [self._engines[name] for name in self._names if name in self._engines]

    def addresses(self) -> list[EngineAddress]:
        """Where the engines that are up are reached."""
        return [engine.address for engine in self.engines]

    def statuses(self) -> list[EngineStatus]:
        """How every engine is, as of the last look at its metrics."""
        return [
            EngineStatus(
                name=name,
                state="Ready" if name in self._engines else "Starting",
                weight_version=self._version,
                kv_tokens=self._last.get(name, PoolMetrics()).kv_capacity_tokens,
            )
            for name in self._names
        ]

    async def start(self, weights: WeightFiles | None = None) -> None:
        """Start all engines, from the model's own weights as version 0 or from others.

        Raises:
            EngineError: an engine did not come up; the others are stopped.
        """
        if weights is not None:
            self._files, self._version = weights, weights.version
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in self._names:
                    tasks.create_task(self._start_engine(name))
        except* (EngineError, RayError, TimeoutError) as group:
            await self.stop()
            first = group.exceptions[0]
            raise first if isinstance(first, EngineError) else EngineError(str(first)) from None

    async def run(self) -> None:
        """Replace engines that are lost, until cancelled.

        Raises:
            EngineError: an engine could not be replaced in several attempts.
        """
        async with asyncio.TaskGroup() as tasks:
            for name in self._names:
                tasks.create_task(self._supervise(name))

    async def publish(self, version: int, files: WeightFiles | None = None) -> None:
        """Admit requests under this version only, on every engine and on those that replace one.

        Args:
            version: The version that weight synchronisation has brought to the engines.
            files: The weights as files, if they were exported: a replacement starts from them.
        """
        self._version = version
        self._files = files or self._files
        async with asyncio.TaskGroup() as tasks:
            for engine in self.engines:
                tasks.create_task(self._expect(engine))

    async def metrics(self) -> PoolMetrics:
        """What the engines do now and have done; one that does not answer counts as it last did."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self.engines:
                tasks.create_task(self._observe(engine))
        return combine([*self._last.values(), self._retired])

    async def stop(self) -> None:
        """End all engines and their servers. Idempotent."""
        engines, self._engines = self._engines, {}
        async with asyncio.TaskGroup() as tasks:
            for engine in engines.values():
                tasks.create_task(self._stop_engine(engine))

    async def _start_engine(self, name: str, port: int = 0) -> None:
        actor = (
            ray.remote(EngineActor)
            .options(max_restarts=0, max_concurrency=100, **self._resources())
            .remote(
                self._launch(name),
                token=self._token,
                weights=self._files,
                limits=self._options.limits,
                files=self._options.files,
            )
        )
        try:
            async with asyncio.timeout(self._spec.start_timeout_seconds + _SCHEDULING_SECONDS):
                engine = RemoteEngine(actor, await actor.start.remote(port))
            await engine.expect(self._version, self._files)
        except BaseException:
            ray.kill(actor)
            raise
        self._engines[name] = engine

    def _launch(self, name: str) -> ServerLaunch:
        return ServerLaunch(
            engine_id=name,
            model_path=self._model_path,
            dtype=self._model.dtype,
            context_length=self._options.context_length or self._model.context_length.train,
            spec=self._spec,
            work_dir=self._options.work_dir,
            device=self._options.device,
            weight_transfer=self._options.weight_transfer,
            tells_experts=self._options.tells_experts,
        )

    def _resources(self) -> dict[str, Any]:
        gpus = self._spec.tensor_parallel if self._options.device == "cuda" else 0
        return {"num_cpus": 0, "num_gpus": gpus} | self._options.actor_options

    async def _supervise(self, name: str) -> None:
        failures = 0
        port = 0
        while True:
            engine = self._engines.get(name)
            if engine is not None:
                failures, port = 0, urlsplit(engine.address.url).port or 0
                await self._wait_lost(engine)
            try:
                await self._start_engine(name, port)
                log.info("an engine was replaced", engine=name)
            except (RayError, EngineError, TimeoutError) as error:
                failures += 1
                if failures == _MAX_FAILED_STARTS:
                    raise EngineError(f"{name} could not be replaced in {failures} attempts: {error}") from error
                log.warning("an engine was not replaced", engine=name, attempt=failures, error=str(error))
                await self._clock.sleep(_BACK_OFF_SECONDS * failures)

    async def _wait_lost(self, engine: RemoteEngine) -> None:
        """Return when the actor is gone or has given its server up, and what is left of it has been ended."""
        name = engine.engine_id
        try:
            await engine.actor.run.remote()
        except (RayError, EngineError) as error:
            log.warning("an engine is lost", engine=name, error=str(error))
        del self._engines[name]
        self._retired = combine([self._retired, retired(self._last.pop(name, PoolMetrics()))])
        ray.kill(engine.actor)

    async def _expect(self, engine: RemoteEngine) -> None:
        try:
            await engine.expect(self._version, self._files)
        except (RayError, TimeoutError) as error:
            # Trials may still reach it, and it would go on under an old version. Its replacement starts with this one.
            log.warning("an engine did not hear of a version", engine=engine.engine_id, error=str(error))
            ray.kill(engine.actor)

    async def _observe(self, engine: RemoteEngine) -> None:
        try:
            self._last[engine.engine_id] = await engine.metrics()
        except (RayError, TimeoutError) as error:
            log.warning("an engine did not answer", engine=engine.engine_id, error=str(error))

    async def _stop_engine(self, engine: RemoteEngine) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await engine.actor.stop.remote()
        except (RayError, TimeoutError) as error:
            log.warning("an engine did not stop by itself", engine=engine.engine_id, error=str(error))
        ray.kill(engine.actor)
