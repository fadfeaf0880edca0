"""One engine: a vLLM server, the gateway before it, and the watchdog that replaces the server in place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, override

import aiohttp
import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_rollout.engine.admin import ADMIN_ERRORS, RefusedError, VllmAdmin
from seatrial_rollout.engine.control import EngineControl, EngineStatus, UpdateReport, WeightFiles
from seatrial_rollout.engine.errors import EngineStartError, WeightUpdateError
from seatrial_rollout.engine.gate import Gate
from seatrial_rollout.engine.gateway import Gateway, Upstream
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.launch import ServerLaunch
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.engine.monitor import Monitor
from seatrial_rollout.engine.server import VllmServer, log_tail
from seatrial_rollout.engine.supervision import DEFAULT_HANG_LIMITS, HangLimits
from seatrial_rollout.engine.tensors import TransferPlan

_MAX_STARTS = 3
_ADMIN_SECONDS = 10.0
_CATCH_UP_SECONDS = 300.0

log = structlog.get_logger()


class Engine(EngineControl):
    """Serves generation at one address, under one weight version at a time.

        clients ──▶ gateway ──▶ gate ──▶ vLLM server
                                 ▲          ▲
        weight updates ──────────┼──────────┤   one at a time, under a lock
        watchdog (`run`) ────────┴──────────┘   kills the server, waits for the lock, starts another

    The gate is open only while the server is sound and holds the expected version. A server that ends, stops
    answering or has requests without progress is replaced in place, with the last weights loaded from files: should
    newer ones have come by a collective, the gate stays shut until the publisher brings them again. A weight update
    that fails leaves the model in pieces, so that the server is replaced then too.
    """

    def __init__(
        self,
        launch: ServerLaunch,
        *,
        token: str,
        weights: WeightFiles,
        limits: HangLimits = DEFAULT_HANG_LIMITS,
        hold_seconds: float = 30.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._launch = launch
        self._token = token
        self._files = weights
        self._check_interval_seconds = limits.check_interval_seconds
        self._clock = clock
        self._gate = Gate(clock)
        self._gateway = Gateway(
            token=token, gate=self._gate, max_running=launch.spec.max_num_seqs, hold_seconds=hold_seconds, clock=clock
        )
        self._gateway.on_cut_off = self._on_cut_off
        self._lock = asyncio.Lock()
        self._suspect = asyncio.Event()
        self._server = VllmServer(launch, clock)
        self._url = ""
        self._num_loads = 0
        self._loaded = WeightFiles(version=-1)
        self._expected_version = weights.version
        self._is_replacing = False
        self._monitor = Monitor(limits, clock)
        self.num_restarts = 0
        """Servers that had to be replaced."""

    @property
    def address(self) -> EngineAddress:
        """Where clients reach the engine, for as long as it lives."""
        return EngineAddress(self.engine_id, self._url, self._token)

    @property
    @override
    def engine_id(self) -> str:
        return self._launch.engine_id

    @property
    def server(self) -> VllmServer:
        """The server of the moment."""
        return self._server

    async def start(self, host: str, port: int = 0) -> None:
        """Listen, start the server and load the weights.

        Raises:
            EngineStartError: vLLM does not come up, with the end of its log.
        """
        try:
            bound = await self._gateway.start(host, port)
        except OSError:
            if not port:
                raise
            bound = await self._gateway.start(host)  # the port of the engine replaced is taken: any other will do
        self._url = f"http://{host}:{bound}"
        async with self._lock:
            await self._start_server()

    async def run(self) -> None:
        """Watch the server and replace it when it dies or hangs, until cancelled.

        Raises:
            EngineStartError: vLLM did not come up again in several attempts.
        """
        while True:
            await self._wait_for_check()
            fault = await self._monitor.find_fault(self._server, may_run=self._gate.is_open)
            if fault is not None:
                await self._replace_server(fault)
            elif not self._lock.locked():
                await self._catch_up()

    async def stop(self) -> None:
        """End everything. Idempotent."""
        self._gate.close("the engine is stopping")
        await self._server.stop()
        await self._gateway.stop()

    @override
    async def status(self) -> EngineStatus:
        server_id = "" if self._is_replacing or not self._server.is_alive else self._server.server_id
        return EngineStatus(self._loaded.version, server_id, self._launch.spec.tensor_parallel)

    @override
    async def expect(self, version: int, files: WeightFiles | None = None) -> None:
        self._expected_version = version
        self._files = files or self._files
        self._suspect.set()  # the watchdog loads what is missing
        if not self._lock.locked():
            self._admit()

    @override
    async def load_files(
        self, path: Path, version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        """Load a safetensors folder under running requests, and expect its version from now on.

        Raises:
            WeightUpdateError: the server could not; it is being replaced, with the weights that it had.
        """
        if not await asyncio.to_thread(_has_safetensors, path):
            raise self._update_error(version, f"there are no safetensors files in {path}")
        deadline = Deadline.after(timeout_seconds, self._clock)
        async with self._updating(version, deadline, clear_kv_cache=clear_kv_cache) as update:
            await update.admin.reload_weights(path, deadline)
            update.files = WeightFiles(version, path)
        return UpdateReport(version, update.paused_seconds)

    @override
    async def join_transfer(self, rendezvous: Mapping[str, Any], timeout_seconds: float) -> None:
        """Enter a collective with the trainer; requests go on meanwhile.

        Raises:
            WeightUpdateError: the server is gone or refuses.
        """
        deadline = Deadline.after(timeout_seconds, self._clock)
        with self._translating(self._expected_version):
            await VllmAdmin(self._server.session).join_transfer(rendezvous, deadline)

    @override
    async def stage(self, plan: TransferPlan, timeout_seconds: float) -> None:
        """Receive weights into host memory in the background; requests go on meanwhile.

        Raises:
            WeightUpdateError: the server is gone or has no collective.
        """
        deadline = Deadline.after(timeout_seconds, self._clock)
        with self._translating(self._expected_version):
            await VllmAdmin(self._server.session).call_workers("stage_weights", deadline, plan=plan.to_wire())

    @override
    async def load_staged(
        self, update_info: Mapping[str, Any], version: int, *, clear_kv_cache: bool, timeout_seconds: float
    ) -> UpdateReport:
        """Load what the collective brought under running requests, and expect its version from now on.

        Raises:
            WeightUpdateError: weights are missing, and the server serves on as it was until told to expect another
                version; or loading failed or took too long, and the server is being replaced.
        """
        deadline = Deadline.after(timeout_seconds, self._clock)
        async with self._updating(version, deadline, clear_kv_cache=clear_kv_cache) as update:
            try:
                await update.admin.start_weight_update(deadline)
            except RefusedError:  # a server that says nothing may still begin, and then its model is in pieces
                update.is_whole = self._launch.weight_transfer == "gloo"
                raise
            await update.admin.update_weights(update_info, deadline)
        return UpdateReport(version, update.paused_seconds)

    @override
    async def leave_transfer(self, timeout_seconds: float) -> None:
        """Leave the collective; a server that does not is given up, or it would hold up every one that follows."""
        if self._is_replacing:
            return
        try:
            await VllmAdmin(self._server.session).leave_transfer(Deadline.after(timeout_seconds, self._clock))
        except ADMIN_ERRORS as error:
            log.warning("engine did not leave its collective", engine=self.engine_id, error=str(error))
            self._give_up("vLLM did not leave its collective")

    @override
    async def metrics(self) -> PoolMetrics:
        """What the engine does now and has done since its start, restarts included."""
        metrics = await self._monitor.metrics(self._server)
        return replace(metrics, waiting=metrics.waiting + self._gateway.num_queued)

    @override
    async def checksums(self, timeout_seconds: float) -> dict[str, str]:
        """SHA-256 of every weight under vLLM's own names: equal weights on two engines, equal digests."""
        return await VllmAdmin(self._server.session).checksums(Deadline.after(timeout_seconds, self._clock))

    async def _start_server(self) -> None:
        """Start the server with the last weights from files, and let requests in if they are the expected ones."""
        deadline = Deadline.after(self._launch.spec.start_timeout_seconds, self._clock)
        await self._server.start(deadline)
        admin = VllmAdmin(self._server.session)
        try:
            if self._files.path is not None:
                await admin.reload_weights(self._files.path, deadline)
            await admin.set_weight_version(self._files.version, deadline)
        except ADMIN_ERRORS as error:
            raise EngineStartError(
                engine_id=self.engine_id,
                what=f"could not load weight version {self._files.version}: {error}",
                log_tail=log_tail(self._launch.log_path),
            ) from error
        self._serve(self._files)

    def _serve(self, loaded: WeightFiles) -> None:
        """Route requests to the server as it now is."""
        self._loaded = loaded
        self._num_loads += 1
        # The load's number beside the version: a run may load version 0 again, with other weights.
        self._gateway.upstream = Upstream(self._server.session, f"{loaded.version}.{self._num_loads}")
        self._admit()

    async def _catch_up(self) -> None:
        """Load the expected version if there are files of it; see to the gate."""
        files = self._files
        if files.path is not None and files.version == self._expected_version and not self._is_loaded:
            with contextlib.suppress(WeightUpdateError):  # the server is replaced then, and its successor loads them
                await self.load_files(
                    files.path, files.version, clear_kv_cache=False, timeout_seconds=_CATCH_UP_SECONDS
                )
        else:
            self._admit()

    @property
    def _is_loaded(self) -> bool:
        """Whether the server holds the expected weights; a run may publish other weights under the same version."""
        loaded, files = self._loaded, self._files
        is_superseded = loaded.path is not None and files.version == loaded.version and files.path != loaded.path
        return loaded.version == self._expected_version and not is_superseded

    def _admit(self) -> None:
        if self._is_loaded:
            self._gate.open()
        else:
            self._gate.close(f"it holds weight version {self._loaded.version}, not {self._expected_version}")

    @asynccontextmanager
    async def _updating(self, version: int, deadline: Deadline, *, clear_kv_cache: bool) -> AsyncIterator["_Update"]:
        """Pause, let the body change the weights, go on under the new version; or give the server up."""
        if self._is_replacing:
            raise self._update_error(version, "its server is being replaced")
        update = _Update(VllmAdmin(self._server.session))
        with self._translating(version):
            async with asyncio.timeout(deadline.remaining), self._lock:
                update.admin = VllmAdmin(self._server.session)
                self._gate.close(f"weight version {version} is being loaded")
                closed = self._gate.closed_seconds
                try:
                    await update.admin.pause(deadline, clear_kv_cache=clear_kv_cache)
                    yield update
                    await update.admin.set_weight_version(version, deadline)
                    await update.admin.resume(deadline)
                    self._expected_version = version
                    self._files = update.files or self._files
                    self._serve(update.files or WeightFiles(version))
                except BaseException:
                    await self._end_failed_update(update)
                    raise
                update.paused_seconds = self._gate.closed_seconds - closed

    async def _end_failed_update(self, update: "_Update") -> None:
        """Go on with the old weights if they are whole, or have the server replaced."""
        with contextlib.suppress(*ADMIN_ERRORS):
            if update.is_whole:
                await update.admin.resume(Deadline.after(_ADMIN_SECONDS, self._clock))
                self._admit()
                return
        self._give_up("vLLM could not load weights")

    def _give_up(self, fault: str) -> None:
        """Have the watchdog replace the server, which nobody is to count on from now on."""
        self._is_replacing = True
        self._gate.close(fault)
        self._server.kill()
        self._suspect.set()

    @contextmanager
    def _translating(self, version: int) -> Iterator[None]:
        try:
            yield
        except ADMIN_ERRORS as error:
            raise self._update_error(version, str(error) or type(error).__name__) from error

    def _update_error(self, version: int, detail: str) -> WeightUpdateError:
        return WeightUpdateError(engine_id=self.engine_id, version=version, detail=detail)

    def _on_cut_off(self, session: aiohttp.ClientSession) -> None:
        """Let nothing more in until the watchdog has looked, unless the server was replaced already."""
        if session is self._server.http:
            self._gate.close("vLLM broke a connection and is being checked")
            self._suspect.set()

    async def _wait_for_check(self) -> None:
        try:
            async with asyncio.timeout(self._check_interval_seconds):
                await self._suspect.wait()
        except TimeoutError:
            pass
        self._suspect.clear()

    async def _replace_server(self, fault: str) -> None:
        """Kill the server and start another.

        Raises:
            EngineStartError: several starts failed.
        """
        log.warning("replacing vllm", engine=self.engine_id, fault=fault)
        self._gate.close(f"{fault}; it is being restarted")
        self._server.kill()  # before the lock: an update that hangs ends with the server
        self._is_replacing = True
        async with self._lock:
            self._monitor.retire()
            for attempt in range(1, _MAX_STARTS + 1):
                await self._server.stop()
                self._server = VllmServer(self._launch, self._clock)
                self.num_restarts += 1
                try:
                    await self._start_server()
                    break
                except EngineStartError:
                    if attempt == _MAX_STARTS:
                        raise
                    log.exception("vllm did not start", engine=self.engine_id, attempt=attempt)
            self._is_replacing = False


def _has_safetensors(path: Path) -> bool:
    return any(path.glob("*.safetensors"))


@dataclass(slots=True)
class _Update:
    """A weight update under way."""

    admin: VllmAdmin
    is_whole: bool = False
    """Whether the model is still usable should the update fail now."""
    files: WeightFiles | None = None
    """Where the weights came from, if from files."""
    paused_seconds: float = 0.0
