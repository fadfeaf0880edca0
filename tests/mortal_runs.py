"""Whole runs of processes that may be killed at any moment: a driver, its policy rank, its engine.

Driver, training loop, scheduler, storage and the torch backend are real, each where it would be: the rank and the
engine are processes of their own. The engine follows a script instead of a model: what it answers is a function of
the task, the place in the group and the weights that it was given, so that two runs that train the same are the same.
Processes are forked from a server that has imported everything, so that dying costs no start.
"""

import asyncio
import hashlib
import json
import logging
import multiprocessing
import os
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self, override

import structlog
from transformers.utils.logging import disable_progress_bar

from seatrial_api.clock import Clock, Deadline
from seatrial_api.driver_request import DriverRequest
from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ContextLength, ModelSpec, S3Source, Source
from seatrial_api.stage_report import StageResult
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_trainer.driver.driver import Driver
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.errors import PolicyRankLostError
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from seatrial_trainer.weight_sync.protocol import SyncReport
from tests.policy_models import write_model
from tests.training_doubles import make_inputs, make_run

STEPS = 6
PATIENCE_SECONDS = 120.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.mortal_runs"])


def write_tiny_model(folder: Path) -> Path:
    """The smallest model that the backend trains, written by a process that has all imported."""
    process = _start(write_model, folder)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0
    return folder


type Victim = Literal["driver", "rank", "engine"]


class HastyClock(Clock):
    """A pause before a retry is no test's business: a hundred times as fast."""

    @override
    def now(self) -> float:
        return asyncio.get_running_loop().time() * 100

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)  # noqa: TID251  a clock


@dataclass(frozen=True)
class MortalRun:
    """One run, over however many attempts."""

    folder: Path
    model: Path
    max_staleness: int
    kept_in: S3Source | None = None
    """Each attempt starts in a folder of its own then."""

    def storage(self, attempt: int = 0) -> RunStorage:
        """What an attempt works on."""
        if self.kept_in is None:
            return RunStorage(self.folder)
        return RunStorage.open(self.folder / f"attempt-{attempt}", self.kept_in)

    def weights(self) -> str:
        """Digest of the trained weights with their optimiser."""
        checkpoint = self.storage(99).stage("train").checkpoints.open(STEPS)
        return checkpoint.manifest.digests["policy/policy.safetensors"]

    def trained(self) -> list[list[tuple[str, list[float]]]]:
        """Tasks and rewards of each batch, in training order."""
        stage = self.storage(99).stage("train")
        batches = [[stage.read_group(group_id) for group_id in one.group_ids] for one in stage.read_batches(0)]
        return [[(group[0].task, [one.reward or 0.0 for one in group]) for group in batch] for batch in batches]

    def durable(self) -> tuple[set[str], dict[int, list[str]]]:
        """Stored groups, and the groups of each logged batch."""
        stage = self.storage().stage("train")
        return set(stage.group_ids()), {one.version: one.group_ids for one in stage.read_batches(0)}

    def replay(self, folder: Path) -> "MortalRun":
        """A run that has this one's groups and logged batches and nothing else."""
        for part in ("trajectories", "stages/train/batches"):
            shutil.copytree(self.folder / part, folder / part)
        return replace(self, folder=folder)


@dataclass
class Death:
    """Kills a run at random moments, and lets it go on."""

    run: MortalRun
    rng: random.Random
    kills: Counter[Victim] = field(default_factory=Counter)
    attempts: int = 0

    def until_the_end(self, num_kills: int) -> None:
        """Go on until the run has passed; after so many kills nobody is killed any more."""
        with _Engine(self.run.folder) as engine:
            while not self._attempt(engine, num_kills):
                assert self.attempts < num_kills + 5, "the run does not get to its end"

    def _attempt(self, engine: "_Engine", num_kills: int) -> bool:
        own, ranks = _CONTEXT.Pipe()
        rank = _start(rank_process, ranks, self.run.model)
        keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        driver = _start(driver_process, self.run, self.attempts, own, engine.address, keys)
        own.close()
        ranks.close()
        self.attempts += 1
        while self.kills.total() < num_kills:
            self._let_it_work(driver)
            if not driver.is_alive():
                break
            victim = self.rng.choice(_VICTIMS)
            before = self.run.durable() if self.run.kept_in is None else None
            {"driver": driver, "rank": rank, "engine": engine.process}[victim].kill()
            self.kills[victim] += 1
            if victim == "engine":
                engine.revive()
                continue
            driver.join(PATIENCE_SECONDS)
            if before is not None:
                _check_survived(before, self.run.durable())
            break
        driver.join(PATIENCE_SECONDS)
        assert not driver.is_alive()
        code = driver.exitcode
        for process in (rank, driver):
            process.kill()
            process.join()
            process.close()
        return code == 0

    def _let_it_work(self, driver: BaseProcess) -> None:
        """Until it has written some files, and a moment longer; a busy machine is waited for."""
        wanted = self._num_files() + self.rng.randint(0, 20)
        deadline = Deadline.after(PATIENCE_SECONDS)
        while driver.is_alive() and self._num_files() < wanted:
            deadline.check("the run to go on")
            driver.join(0.003)
        driver.join(self.rng.uniform(0.0, 0.02))

    def _num_files(self) -> int:
        return sum(1 for _ in self.run.folder.rglob("*"))


_VICTIMS: tuple[Victim, ...] = ("driver", "driver", "driver", "rank", "engine")


def _check_survived(
    before: tuple[set[str], dict[int, list[str]]], after: tuple[set[str], dict[int, list[str]]]
) -> None:
    assert before[0] <= after[0], "a stored group is gone"
    assert before[1].items() <= after[1].items(), "a logged batch is gone or changed"


def _start(target: Any, *arguments: Any) -> BaseProcess:
    process = _CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


class _Engine:
    """The engine's process at an address that outlives it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address = str(folder / "engine.sock")
        self.process = _start(engine_process, self.address)

    def revive(self) -> None:
        """Another one takes the dead one's place."""
        self.process.join()
        self.process = _start(engine_process, self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def engine_process(address: str) -> None:
    """Answer every request after a moment."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # who asked may have been killed
            await answer(reader, writer)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seed = (await reader.readline()).decode().strip()
        if not seed:
            writer.close()
            return
        rng = random.Random(seed)  # noqa: S311  a script
        await HastyClock().sleep(rng.uniform(0.0, 4.0))
        said = {
            "token_ids": [rng.randrange(64) for _ in range(rng.randint(4, 9))],
            "logprobs": [-rng.uniform(3.0, 5.0) for _ in range(9)],
            "reward": rng.choice([0.0, 0.3, 0.6, 1.0]),
        }
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_unix_server(serve_one, address)
        await server.serve_forever()

    Path(address).unlink(missing_ok=True)
    asyncio.run(serve())


class _WritingBeside(TorchBackend):
    """Writes what it holds in a thread, as the actor does."""

    _writing: Future[None]

    @override
    def hold(self, state: Path, model: Path) -> Any:
        self._writing = _THREAD.submit(super().hold(state, model))

    def has_written(self) -> bool:
        """Whether the last checkpoint is written."""
        if is_done := self._writing.done():
            self._writing.result()
        return is_done


_THREAD = ThreadPoolExecutor(1)


def rank_process(connection: Connection, model: Path) -> None:
    """A real backend; called by name."""
    disable_progress_bar()
    setup = PolicySetup(
        ModelSpec(source=Source(path="unused"), dtype="float32", context_length=ContextLength(train=256)),
        TrainerSpec(),
        OptimizerSpec(),
    )
    backend = _WritingBeside(setup, model)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the driver is gone
        while True:
            method, arguments = connection.recv()
            connection.send(getattr(backend, method)(*arguments))


@dataclass
class RemotePolicy:
    """The rank, as the driver sees it."""

    connection: Connection
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def train_minibatch(self, minibatch: Minibatch, learning_rate: float) -> tuple[StepStats, OptimStats]:
        """One optimiser step."""
        stats: StepStats = await self._call("forward_backward", minibatch)
        return stats, await self._call("optim_step", 100 * learning_rate)

    async def logprobs(self, sequences: list[list[int]]) -> Any:
        """Log probability of each token."""
        return await self._call("logprobs", sequences)

    async def hold(self, state: Path, model: Path) -> Callable[[], Awaitable[None]]:
        """Take a checkpoint, which the rank writes while it does other things."""
        await self._call("hold", state, model)

        async def write() -> None:
            while not await self._call("has_written"):
                await HastyClock().sleep(1.0)

        return write

    async def load(self, folder: Path) -> None:
        """Take it back."""
        await self._call("load", folder)

    async def export(self, folder: Path) -> Any:
        """Write a model."""
        return await self._call("export", folder)

    async def _call(self, method: str, *arguments: Any) -> Any:
        def call() -> Any:
            self.connection.send((method, arguments))
            return self.connection.recv()

        async with self._turn:
            try:
                return await asyncio.to_thread(call)
            except (EOFError, OSError) as error:
                raise PolicyRankLostError(rank=0, during=method, detail="its process is gone") from error


@dataclass
class MortalCluster:
    """What a driver has around it: one rank, one engine."""

    policy_now: RemotePolicy
    engine: str
    exports: Path
    weights: str = ""
    """Digest of the weights that the engine serves."""

    async def rollout(self) -> Any:
        """Where trials are prepared."""
        return SimpleNamespace(trials=SimpleNamespace(prepare=lambda *_: None))

    async def policy(self, *, fresh: bool = False) -> RemotePolicy:
        """The rank; each attempt has a fresh one."""
        del fresh
        return self.policy_now

    async def serve(self, path: Path, version: int) -> None:
        """Serve a folder."""
        del version
        self.weights = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()

    async def publish(self, version: int) -> SyncReport:
        """Serve the rank's weights."""
        folder = self.exports / f"{version}-{random.getrandbits(32)}"
        await self.policy_now.export(folder)
        await self.serve(folder, version)
        shutil.rmtree(folder)
        return SyncReport(seconds=0.0, paused_seconds=0.0, bytes=0, num_engines=1)

    async def repair(self) -> None:
        """Whoever asks the engine brings the weights' digest."""

    @asynccontextmanager
    async def dispatching(self, algorithmic_ceiling: int) -> AsyncIterator[TrialDispatcher]:
        """Run trials at the ceiling."""
        async with TrialDispatcher(
            self, limit=algorithmic_ceiling, trial_timeout_seconds=10_000.0, clock=HastyClock()
        ) as dispatcher:
            yield dispatcher

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """A trial of one turn."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.engine)
            writer.write(f"{ticket.task} {ticket.slot} {ticket.purpose} {self.weights}\n".encode())
            line = await reader.readline()
            writer.close()
        except OSError:
            line = b""
        if not line:
            await self._engine_is_back()  # or tries would be spent while the next one starts
            return ticket.without_result(Outcome.ENGINE_FAILED, "the engine is gone")
        said = json.loads(line)
        prompt, sampled = [1, 2, 3], said["token_ids"]
        sequence = TokenSequence(
            token_ids=prompt + sampled,
            loss_mask=[0] * 3 + [1] * len(sampled),
            logprobs=[0.0] * 3 + said["logprobs"][: len(sampled)],
            weight_versions=[-1] * 3 + [ticket.start_version] * len(sampled),
        )
        return ticket.trajectory(Outcome.COMPLETED, harness="script", reward=said["reward"], sequences=[sequence])

    async def _engine_is_back(self) -> None:
        deadline = Deadline.after(PATIENCE_SECONDS)
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(self.engine)
            except OSError:
                deadline.check("another engine")
                await HastyClock().sleep(1.0)
            else:
                writer.close()
                return


def driver_process(
    run: MortalRun, attempt: int, connection: Connection, engine: str, environment: Mapping[str, str]
) -> None:
    """One attempt of a driver; exits with 0 once the stage has passed."""
    os.environ.update(environment)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    raise SystemExit(asyncio.run(_drive(run, attempt, connection, engine)))


async def _drive(run: MortalRun, attempt: int, connection: Connection, engine: str) -> int:
    stages = [{"name": "train", "train": {"steps": STEPS, "validateEverySteps": 3}}]
    manifest = make_run(
        spec__stages=stages,
        spec__algorithm__groupSize=3,
        spec__algorithm__batchSize=4,
        spec__guards={"maxLogprobDiff": None},  # a script's logprobs are nobody's
        spec__async__maxStalenessSteps=run.max_staleness,
    )
    storage = await asyncio.to_thread(run.storage(attempt).taken_over)
    storage.exports.mkdir(parents=True, exist_ok=True)
    cluster = MortalCluster(RemotePolicy(connection), engine, storage.exports)
    request = DriverRequest(run=manifest, base_dir=Path(), stages=["train"])
    telemetry = Telemetry("run", manifest.spec.stages, RunMetrics("default", "run"))
    inputs = replace(make_inputs(num_tasks=10), model_path=run.model)
    driver = Driver(request, inputs, storage, cluster, telemetry, LiveSpec(manifest), asyncio.Event())  # type: ignore[arg-type]  a double
    (report,) = await driver.run()
    return 0 if report.result is StageResult.PASSED else 1
