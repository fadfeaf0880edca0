"""One life of the driver: serve, run the segment that was asked for, and stay until the launcher knows how it ended."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import structlog
from pydantic import ValidationError

from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError, SeatrialError
from seatrial_api.playbook import ExitCode, Finished, RunStage, Stopped, exit_code, next_step
from seatrial_api.pods import Role
from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder
from seatrial_trainer.driver.cluster import Cluster
from seatrial_trainer.driver.driver import Driver
from seatrial_trainer.driver.inputs import load_inputs
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.placement import Placement
from seatrial_trainer.driver.processes import RayProcesses
from seatrial_trainer.driver.request import ADDRESS_FILE, REFUSED, DriverAddress
from seatrial_trainer.driver.spending import Spending
from seatrial_trainer.driver.stopping import StopRequestedError, unless_stopped
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.observability.server import Remote, serve
from seatrial_trainer.observability.trackers import open_trackers
from seatrial_trainer.reporting.report import write_report
from seatrial_trainer.reporting.results import write_results
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.run_storage import REQUEST_FILE, USAGE_FILE, RunStorage

log = structlog.get_logger(__name__)

_LINGER_SECONDS = 60.0
"""For a launcher elsewhere to ask how the driver ended; it finds the stored reports if it comes later."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the driver serves, and whom."""

    host: str
    port: int
    """0 takes a free one."""
    token: str | None
    """What a launcher on another machine shows; without it there is no such launcher."""

    @classmethod
    def from_environment(cls) -> Self:
        """From `SEATRIAL_DRIVER_HOST`, `SEATRIAL_DRIVER_PORT` and `SEATRIAL_DRIVER_TOKEN`.

        The token is taken out: what the driver starts, trials among it, shall not inherit it.
        """
        return cls(
            host=os.environ.get("SEATRIAL_DRIVER_HOST", "127.0.0.1"),
            port=int(os.environ.get("SEATRIAL_DRIVER_PORT", "0")),
            token=os.environ.pop("SEATRIAL_DRIVER_TOKEN", "") or None,
        )


@dataclass(frozen=True)
class Session:
    """What the driver's parts share.

    A stop is asked for by a signal or by the launcher's `POST /v1/stop`. After a signal nobody waits for the launcher:
    whoever sent it will not.
    """

    storage: RunStorage
    """The run's folder, and how it is kept."""
    request: DriverRequest
    telemetry: Telemetry
    live: LiveSpec
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    was_signalled: asyncio.Event = field(default_factory=asyncio.Event)
    was_told: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the launcher has read how the driver ended."""

    def take_signals(self) -> None:
        """Stop on SIGINT and SIGTERM; again after something else has taken them."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    async def run(self) -> ExitCode:
        """Run the segment, and tell how it ended once all that it started is gone."""
        spending = self.telemetry.spending
        async with asyncio.TaskGroup() as tasks:
            accounts = tasks.create_task(spending.keep_on(), name="accounts")
            code, message = await self._outcome()
            accounts.cancel()
        await asyncio.to_thread(spending.keep)
        await self._write_report()
        self.telemetry.ended(code, message)
        return code

    async def linger(self) -> None:
        """Wait until the launcher has read how the driver ended."""
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await unless_stopped(self.was_signalled, self.was_told.wait())
        except (TimeoutError, StopRequestedError):
            log.warning("the launcher did not ask how the driver ended; the reports are stored")

    async def _write_report(self) -> None:
        """Write results and report, and keep them; a fault of these is no fault of the run."""
        try:
            await asyncio.to_thread(write_results, self.storage.root)
            await asyncio.to_thread(write_report, self.storage.root)
            await asyncio.to_thread(self.storage.keep_pages)
        except Exception:
            log.exception("the report was not written")

    async def _outcome(self) -> tuple[ExitCode, str]:
        try:
            end = await self._run_segment()
        except StopRequestedError:
            return ExitCode.INTERRUPTED, "stopped before a stage began; resume to go on"
        except InvalidInputError as error:
            log.error(REFUSED, error=str(error))  # noqa: TRY400  the sentence suffices
            return ExitCode.INVALID, str(error)
        except Exception as error:
            log.exception("the driver failed")
            return ExitCode.FAILED, f"{type(error).__name__}: {error}; the traceback is in the driver's log"
        return exit_code(end), "" if isinstance(end, Finished) else end.message

    async def _run_segment(self) -> Finished | Stopped:
        request, spec = self.request, self.request.run.spec
        self.telemetry.trackers = open_trackers(request.run, self.storage.root)
        self.telemetry.activity("reading the model and the tasks")
        inputs = await unless_stopped(self.stop, asyncio.to_thread(load_inputs, spec, request.base_dir))
        self.telemetry.activity("taking the run over")
        storage = await unless_stopped(self.stop, asyncio.to_thread(self.storage.taken_over))
        self.telemetry.spending.go_on(storage.root / USAGE_FILE, storage.files)
        placement = Placement(request.pods)
        name = request.run.metadata.name
        processes = RayProcesses(spec, inputs, storage, self.telemetry, placement, name, self.take_signals)
        processes.files = _handover(storage, request)
        async with Cluster(self.live, inputs, storage, self.telemetry, processes, self.stop) as cluster:
            reports = await Driver(request, inputs, storage, cluster, self.telemetry, self.live, self.stop).run()
        stages = [stage for stage in spec.stages if stage.name in request.stages]
        end = next_step(stages, {report.stage: report for report in reports})
        if isinstance(end, RunStage):
            msg = f"the driver ended before stage {end.stage.name}"
            raise SeatrialError(msg)
        return end

    def _on_signal(self) -> None:
        self.stop.set()
        self.was_signalled.set()


async def drive(folder: Path, request_file: Path | None, server: ServerSettings) -> ExitCode:
    """Run the segment that a request asks for.

    Args:
        folder: The run's folder; made if it is not there.
        request_file: The request; the folder's own if none.
        server: Where to serve.

    Raises:
        InvalidInputError: if the request cannot be read.
    """
    request = _read_request(folder, request_file)
    run = request.run
    structlog.contextvars.bind_contextvars(run=run.metadata.name)
    telemetry = _telemetry(request)
    session = Session(RunStorage.open(folder, request.kept_in), request, telemetry, LiveSpec(run))
    session.take_signals()
    remote = server.token and Remote(server.token, session.live.change, session.stop.set, session.was_told.set)
    async with AsyncExitStack() as stack:
        stack.callback(telemetry.close)
        url = await stack.enter_async_context(
            serve(server.host, server.port, telemetry.snapshot, telemetry.metrics.registry, remote or None)
        )
        address = DriverAddress(url=url, pid=os.getpid())
        write_atomic(folder / ADDRESS_FILE, address.model_dump_json(by_alias=True).encode())
        stack.callback((folder / ADDRESS_FILE).unlink, missing_ok=True)
        code = await session.run()
        if remote:
            await session.linger()
    return code


def _telemetry(request: DriverRequest) -> Telemetry:
    run, pods = request.run, request.pods or {}
    spec, algorithm = run.spec, run.spec.algorithm
    nodes = pods.get(Role.ROLLOUT, 0) + pods.get(Role.TRAIN, 0)
    return Telemetry(
        run.metadata.name,
        spec.stages,
        RunMetrics(run.metadata.namespace or "default", run.metadata.name),
        spending=Spending(spec.cost, nodes or 1),
        error_window=spec.guards.window_steps * algorithm.batch_size * algorithm.group_size,
    )


def _handover(storage: RunStorage, request: DriverRequest) -> SharedFolder:
    """How the run's processes hand files to each other: pods of a run that is kept in S3 share no volume."""
    if request.pods is None or request.kept_in is None:
        return SHARED_FOLDER
    from seatrial_rollout.object_store.remote_folder import RemoteFolder  # noqa: PLC0415  boto3, which few need

    return RemoteFolder(storage.root, request.kept_in)


def _read_request(folder: Path, file: Path | None) -> DriverRequest:
    """The request, which the folder keeps: whoever reads the folder later finds in it what was asked for."""
    own = folder / REQUEST_FILE
    try:
        content = (file or own).read_bytes()
        request = DriverRequest.model_validate_json(content)
    except (OSError, ValidationError) as error:
        raise InvalidInputError(f"{file or own} is no request that a driver can run: {error}") from error
    if file is not None:
        write_atomic(own, content)
    return request
