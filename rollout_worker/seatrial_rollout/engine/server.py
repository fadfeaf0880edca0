"""One vLLM server process: started, waited for, called and ended."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_rollout.engine import guard
from seatrial_rollout.engine.errors import EngineStartError
from seatrial_rollout.engine.launch import ServerLaunch, command, environment

_LOG_TAIL_LINES = 30
_POLL_SECONDS = 0.1
_KEEP_ALIVE_SECONDS = 2.0
"""Shorter than vLLM's own 5 s, so that no request goes out on a connection that is being closed."""

log = structlog.get_logger()


class VllmServer:
    """A vLLM process behind a Unix socket that only this user can reach, so that no agent calls its admin routes.

    A server is started once; after `stop` make another.
    """

    def __init__(self, launch: ServerLaunch, clock: Clock = SYSTEM_CLOCK) -> None:
        self._launch = launch
        self._clock = clock
        self._directory = Path(tempfile.mkdtemp(prefix="seatrial-engine-"))
        self._socket_path = self._directory / "vllm.sock"
        self._process: asyncio.subprocess.Process | None = None
        self.http: aiohttp.ClientSession | None = None
        """Connections to the server; `/health` and so on are paths under `BASE_URL`."""

    async def start(self, deadline: Deadline) -> None:
        """Start the process and wait until it answers.

        Raises:
            EngineStartError: the process ended or the deadline passed, with the end of its log.
        """
        launch = self._launch
        launch.work_dir.mkdir(parents=True, exist_ok=True)
        with launch.log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", guard.__file__, *command(launch, self._socket_path)),
                env=environment(launch, os.environ, self._directory),
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )
        connector = aiohttp.UnixConnector(str(self._socket_path), limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS)
        self.http = aiohttp.ClientSession(BASE_URL, connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        started = self._clock.now()
        while not await self.is_healthy(timeout_seconds=max(deadline.remaining, _POLL_SECONDS)):
            if not self.is_alive:
                raise self._start_error(f"vLLM ended while starting, after {self._clock.now() - started:.0f} s")
            if deadline.remaining <= 0:
                raise self._start_error(f"vLLM did not answer within {self._clock.now() - started:.0f} s")
            await self._clock.sleep(_POLL_SECONDS)
        log.info("vllm ready", engine=launch.engine_id, seconds=round(self._clock.now() - started, 1))

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def server_id(self) -> str:
        """Tells this server from every other."""
        return self._directory.name

    @property
    def process_group(self) -> int:
        """Id of the group that holds the guard, the server and vLLM's own children.

        Raises:
            RuntimeError: the server was not started.
        """
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    async def wait_exit(self) -> None:
        """Return when the process has ended."""
        if self._process is not None:
            await self._process.wait()

    async def is_healthy(self, *, timeout_seconds: float) -> bool:
        """Whether the server answers that it is well."""
        try:
            async with self.session.get("/health", timeout=aiohttp.ClientTimeout(total=timeout_seconds)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to the server.

        Raises:
            RuntimeError: the server was not started.
        """
        if self.http is None:
            raise RuntimeError("the server was not started")
        return self.http

    def kill(self) -> None:
        """End the whole group at once; `stop` has to follow."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End the process and let go of everything. Idempotent."""
        self.kill()
        await self.wait_exit()
        if self.http is not None:
            await self.http.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start_error(self, what: str) -> EngineStartError:
        return EngineStartError(engine_id=self._launch.engine_id, what=what, log_tail=log_tail(self._launch.log_path))


BASE_URL = "http://vllm"
"""The host part is a placeholder: the connection goes to the Unix socket."""


def log_tail(path: Path, lines: int = _LOG_TAIL_LINES) -> str:
    """The last lines of a log, without reading all of it."""
    if not path.exists():
        return "(no log)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 400 * lines))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
