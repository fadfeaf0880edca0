"""Runs trials on one node, each in a process of its own."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.errors import InvalidInputError, SeatrialError
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.environment.broker_access import BrokerAccess
from seatrial_rollout.environment.isolation import Isolation, Means
from seatrial_rollout.environment.zygote import ADDRESS_VARIABLE
from seatrial_rollout.environment.zygote import Zygote as SandboxZygote
from seatrial_rollout.trials.channel import (
    MAX_PACKET_BYTES,
    AnswerPart,
    Exited,
    Kill,
    Start,
    Stop,
    pack,
    packet_pair,
    unpack,
)
from seatrial_rollout.trials.folders import OwnedFolder, try_to_remove
from seatrial_rollout.trials.harness_check import check_harnesses
from seatrial_rollout.trials.kept_turns import size_of
from seatrial_rollout.trials.outcomes import unfinished
from seatrial_rollout.trials.request import TrialRequest
from seatrial_rollout.trials.spawn import HostConfig, RunningZygote, ZygoteError, tail
from seatrial_sandbox.errors import SandboxError

LOCAL = "local"
"""The provider of sandboxes on the host itself."""
_KUBERNETES = "kubernetes"
_REAP_SECONDS = 20.0
"""Time in which a killed trial is reaped."""
_REMOVE_SECONDS = 5.0
"""Time in which the processes of a dead trial let go of its folder."""


_log = structlog.get_logger(__name__)


class _ProcessDiedError(Exception):
    """A trial process, or the zygote above it, died before it answered; the message says what is known."""


@dataclass(slots=True)
class _Flight:
    """A trial in a process."""

    link: socket.socket
    timeout: asyncio.Timeout
    is_cancelled: bool = False
    answer: bytearray = field(default_factory=bytearray)
    is_answered: bool = False
    exited: Exited | None = None

    def order(self, message: Stop | Kill) -> None:
        """Tell the zygote what to do with the trial; nothing if it is gone with all its trials."""
        with contextlib.suppress(OSError):
            self.link.send(pack(message))

    async def listen(self) -> None:
        """Take in packets until the trial process has been reaped, or the zygote is gone."""
        loop = asyncio.get_running_loop()
        while self.exited is None:
            packet = await loop.sock_recv(self.link, MAX_PACKET_BYTES)
            if not packet:
                return
            match unpack(packet):
                case AnswerPart(data, is_last):
                    self.answer += data
                    self.is_answered = is_last
                case Exited() as exited:
                    self.exited = exited
                case message:
                    raise ZygoteError(f"a trial cannot say {message}")


class TrialHost:
    """Runs trials in processes forked from one warm zygote.

    Works as a plain object and as an asynchronous Ray actor. A trial's fault is in its trajectory and never
    raised. How many trials run at once is the caller's business. A trial whose process dies goes on in another
    one, with the turns that were sampled, as long as each gets further than the one before.

        run ──▶ zygote ──fork──▶ trial process ──answer──▶ run
         │                          ▲
         └── wall deadline, cancel ─┘  Stop, then Kill

    Shutdown: `stop` closes the control pair; the zygote ends every trial process and itself; waiting `run`s
    return `Cancelled`; the folder is removed.
    """

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._folder = OwnedFolder.create(config.scratch_dir)
        self._zygote: RunningZygote | None = None
        self._sandboxes: SandboxZygote | None = None
        self._starting = asyncio.Lock()
        self._flights: dict[str, _Flight] = {}
        self._between: set[str] = set()
        """Trials that have no process yet, or none any more; one that is cancelled leaves."""
        self._folders = itertools.count()
        self._is_stopped = False
        self._cpu_seconds = 0.0

    @property
    def root(self) -> Path:
        """Holds the folders of all its trials."""
        return self._folder.path

    async def start(self) -> str:
        """Load the zygotes now instead of with the first trial.

        Returns:
            Where the configured sandboxes are, and what keeps them apart: `local, isolated`; empty without any.

        Raises:
            ZygoteError: if the trials' zygote does not come up.
            SandboxStartError: if that of the sandboxes does not, or no broker answers.
            InvalidInputError: if a harness cannot be loaded, or the pod was not told of the broker that it needs.
        """
        await check_harnesses(self._config.harnesses, self._config.environment())
        async with self._starting:
            await self._living_zygote()
            return await self._describe_sandboxes()

    async def run(self, request: TrialRequest) -> Trajectory:
        """Run one trial to its end; whatever happens to it is told in the trajectory."""
        started = SYSTEM_CLOCK.now()
        turns_file = self.root / f"{next(self._folders)}.turns"
        self._between.add(request.trial_id)
        try:
            trajectory = await self._go_on(request, turns_file)
        except (SeatrialError, OSError) as exc:
            outcome = Outcome.SANDBOX_FAILED if isinstance(exc, SandboxError) else Outcome.HARNESS_FAILED
            trajectory = unfinished(request, Outcome.CANCELLED if self._is_stopped else outcome, str(exc))
        finally:
            self._between.discard(request.trial_id)
            turns_file.unlink(missing_ok=True)
        return trajectory.model_copy(update={"wall_seconds": SYSTEM_CLOCK.now() - started})

    async def expect(self, trials: Mapping[str, int]) -> None:
        """Have sandboxes ready for trials of the run that start soon, on whichever host; a new word replaces the last.

        Args:
            trials: How many, by world.

        Raises:
            SandboxStartError: if no broker takes the word.
        """
        for world, num_trials in trials.items():
            await _announce(world, num_trials)

    async def cancel(self, trial_id: str) -> None:
        """Ask a trial to end; it is killed if it does not within a grace time. Unknown ids are ignored."""
        self._between.discard(trial_id)
        flight = self._flights.get(trial_id)
        if flight is not None and not flight.is_cancelled and not flight.timeout.expired():
            flight.is_cancelled = True
            flight.order(Stop())
            flight.timeout.reschedule(asyncio.get_running_loop().time() + self._config.grace_seconds)

    async def cpu_seconds(self) -> float:
        """CPU time of all trial processes and their children so far."""
        return self._cpu_seconds

    async def stop(self) -> None:
        """End every trial and leave no process and no folder."""
        self._is_stopped = True
        async with self._starting:
            if self._zygote is not None:
                await self._zygote.stop(self._config.grace_seconds)
            if self._sandboxes is not None:
                await self._sandboxes.stop()
        await _remove(self.root)
        self._folder.release()

    async def _living_zygote(self) -> RunningZygote:
        if self._is_stopped:
            raise ZygoteError("the trial host was stopped")
        if self._zygote is not None and not self._zygote.is_alive:
            await self._zygote.stop(0.0)
            self._zygote = None
        if self._zygote is None:
            self._zygote = await RunningZygote.start(self.root, self._config)
        return self._zygote

    async def _environment(self, request: TrialRequest) -> dict[str, str]:
        """What a trial finds its warm sandboxes by."""
        if request.sandbox.provider != LOCAL:
            return {}
        return {ADDRESS_VARIABLE: str((await self._living_sandboxes()).address)}

    async def _living_sandboxes(self) -> SandboxZygote:
        if self._sandboxes is None or self._sandboxes.process.poll() is not None:
            self._sandboxes = await SandboxZygote.start()
        return self._sandboxes

    async def _describe_sandboxes(self) -> str:
        sandbox = self._config.sandbox
        if sandbox is not None and sandbox.provider == _KUBERNETES:
            if sandbox.world is None:
                raise InvalidInputError("sandbox.world is empty; name the WorldImage that the tasks are tried in")
            await _announce(sandbox.world, self._config.num_trials)
            return f"{_KUBERNETES}, pods of world {sandbox.world}"
        if sandbox is None or sandbox.provider != LOCAL:
            return "" if sandbox is None else sandbox.provider
        is_plain = sandbox.config.get("isolation") == Isolation.PLAIN
        is_plain = is_plain or (await self._living_sandboxes()).means is Means.PLAIN
        return f"{LOCAL}, {'not isolated' if is_plain else 'isolated'}"

    async def _go_on(self, request: TrialRequest, turns_file: Path) -> Trajectory:
        """Run a trial in one process after the other, until one answers or gets no further than the one before."""
        async with self._starting:
            await self._living_zygote()  # whose start is not the trial's time
        wall = Deadline.after(request.harness.limits.wall_timeout_seconds)
        num_resumptions = 0
        while True:
            size = size_of(turns_file)
            work_dir = self.root / str(next(self._folders))
            try:
                trajectory = await self._run(request, work_dir, turns_file, wall)
            except _ProcessDiedError as death:
                if size_of(turns_file) == size:
                    return unfinished(request, Outcome.HARNESS_FAILED, str(death))
                num_resumptions += 1
                _log.warning("trial process replaced", trial=request.trial_id, reason=str(death))
            else:
                return trajectory.model_copy(update={"num_resumptions": num_resumptions})
            finally:
                await _remove(work_dir)

    async def _run(self, request: TrialRequest, work_dir: Path, turns_file: Path, wall: Deadline) -> Trajectory:
        async with self._starting:
            zygote = await self._living_zygote()
            environment = await self._environment(request)
        if request.trial_id not in self._between:
            return unfinished(request, Outcome.CANCELLED, "the run stopped while the trial had no process")
        os.mkdir(work_dir)  # noqa: PTH102  two microseconds; nothing to wait for
        near, far = packet_pair()
        near.settimeout(0)
        flight = _Flight(near, asyncio.timeout(wall.remaining + self._config.grace_seconds))
        with near, far:
            near.send(pack(Start(request, work_dir, environment, turns_file, wall.remaining)))
            zygote.hand_over(far)
            far.close()
            self._flights[request.trial_id] = flight
            try:
                async with flight.timeout:
                    await flight.listen()
            except TimeoutError:
                await _kill(flight)
                if not flight.is_cancelled:
                    seconds = request.harness.limits.wall_timeout_seconds + self._config.grace_seconds
                    detail = f"the trial did not end within {seconds:.0f} s and was killed"
                    return unfinished(request, Outcome.DEADLINE_EXCEEDED, detail)
            except asyncio.CancelledError:
                await _kill(flight)
                raise
            finally:
                del self._flights[request.trial_id]
        return self._judge(request, flight, work_dir)

    def _judge(self, request: TrialRequest, flight: _Flight, work_dir: Path) -> Trajectory:
        if flight.exited is not None:
            self._cpu_seconds += flight.exited.cpu_seconds
        if flight.is_answered:
            return Trajectory.model_validate_json(bytes(flight.answer))
        if flight.is_cancelled or self._is_stopped:
            return unfinished(request, Outcome.CANCELLED, "the run stopped; the trial was killed before it answered")
        if flight.exited is None:
            raise _ProcessDiedError("the zygote died, and the trial process with it")
        detail = f"the trial process {_describe(flight.exited.status)} before it answered"
        output = tail(work_dir / "output.log")
        raise _ProcessDiedError(f"{detail}; its output ends:\n{output}" if output else detail)


async def _announce(world: str, num_trials: int) -> None:
    """Have sandboxes made before trials ask for them."""
    from seatrial_rollout.environment.broker import announce  # noqa: PLC0415  gRPC, which no other provider needs

    await announce(BrokerAccess.of_this_pod(), world, num_trials)


async def _kill(flight: _Flight) -> None:
    """End the trial's processes and wait until they are reaped."""
    flight.order(Kill())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await flight.listen()


async def _remove(folder: Path) -> None:
    deadline = Deadline.after(_REMOVE_SECONDS)
    while not try_to_remove(folder) and deadline.remaining > 0:
        await SYSTEM_CLOCK.sleep(0.02)


def _describe(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
