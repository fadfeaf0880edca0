"""A training loop's surroundings without engines, sandboxes and torch: each part does its duty and takes notes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from seatrial_api.outcome import Outcome
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.spec.stages import StageSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.inputs import Inputs
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from seatrial_trainer.weight_sync.protocol import SyncReport
from tests.manifests import run_manifest
from tests.trajectories import make_trajectory

type Act = Callable[[TrialTicket], Awaitable[Outcome]]
type Moment = Literal["train", "save", "written", "publish", "published"]
type Watch = Callable[[Moment, int], None]
"""Told what is about to be done, and with which version; a test may raise or set things off there."""


def watch_nothing(_moment: Moment, _version: int) -> None:
    """Let everything happen."""


class NotedPolicy:
    """Weights are the list of what was trained; a checkpoint is that list."""

    def __init__(self, watch: Watch = watch_nothing) -> None:
        self.weights: list[Any] = []
        self.may_write = asyncio.Event()
        """What is held is not written before."""
        self.may_write.set()
        self._watch = watch

    async def train_minibatch(self, minibatch: Minibatch, learning_rate: float) -> tuple[StepStats, OptimStats]:
        """Note the mini-batch."""
        assert minibatch.fresh_version is not None
        self._watch("train", minibatch.fresh_version)
        self.weights.append([minibatch.fresh_version, [sequence.advantage for sequence in minibatch.sequences]])
        num_tokens = sum(sum(sequence.loss_mask) for sequence in minibatch.sequences)
        stats = StepStats(
            loss=0.5,
            num_tokens=num_tokens,
            num_total_tokens=num_tokens,
            entropy=1.0,
            logprob_abs_diff_mean=0.0,
            logprob_abs_diff_max=0.0,
            mismatch_kl=0.0,
            clipped_fraction=0.0,
            kl_to_reference=0.0,
            packing_waste=0.0,
            seconds=0.0,
            num_fresh_tokens=num_tokens,
        )
        return stats, OptimStats(grad_norm=1.0, learning_rate=learning_rate)

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """All tokens are certain."""
        return [[0.0] * len(sequence) for sequence in sequences]

    async def hold(self, *folders: Path) -> Callable[[], Awaitable[None]]:
        """Keep the list as it is now; it is a model as well."""
        version, held = len(self.versions), json.dumps(self.weights)
        self._watch("save", version)

        async def write() -> None:
            await self.may_write.wait()
            for folder in folders:
                self._write(folder, held)
            self._watch("written", version)

        return write

    def _write(self, folder: Path, held: str) -> None:
        folder.mkdir()
        (folder / "weights.json").write_text(held)

    async def load(self, folder: Path) -> None:
        """Take the list back."""
        self._read(folder)

    def _read(self, folder: Path) -> None:
        self.weights = json.loads((folder / "weights.json").read_text())

    @property
    def versions(self) -> list[int]:
        """Versions that steps were made from, each once however many mini-batches it had."""
        return list(dict.fromkeys(version for version, _ in self.weights))


@dataclass
class NotedCluster:
    """Policy and engines in memory, under the real dispatcher."""

    act: Act
    watch: Watch = watch_nothing
    policy_now: NotedPolicy = field(default_factory=NotedPolicy)
    served: list[int] = field(default_factory=list)
    """Versions that the engines were given, in order."""
    repairs: int = 0
    adopted: list[RLRunSpec] = field(default_factory=list)
    """Specs that were trained under, in order."""
    trial_seconds: ClassVar[float] = 20.0
    """A trial that takes longer is given up."""

    async def rollout(self) -> Any:
        """Where trials are prepared, and engines looked at."""
        return SimpleNamespace(
            trials=SimpleNamespace(prepare=lambda *_: None), pool=SimpleNamespace(metrics=self.engine_metrics)
        )

    async def engine_metrics(self) -> PoolMetrics:
        """Trials end before an engine is seen to sample."""
        return PoolMetrics()

    async def policy(self, *, fresh: bool = False) -> NotedPolicy:
        """The policy."""
        if fresh:
            self.policy_now = NotedPolicy(self.watch)
        return self.policy_now

    async def adopt(self, spec: RLRunSpec) -> None:
        """Note under which spec is trained."""
        self.adopted.append(spec)

    async def serve(self, _path: Path, version: int) -> None:
        """The engines load a folder."""
        self.served.append(version)

    async def publish(self, version: int) -> SyncReport:
        """The engines take over the policy's weights, which have to be those of the version."""
        assert self.policy_now.versions == list(range(version))
        self.watch("publish", version)
        self.served.append(version)
        self.watch("published", version)
        return SyncReport(seconds=0.0, paused_seconds=0.0, bytes=0, num_engines=1)

    async def repair(self) -> None:
        """Nothing breaks."""
        self.repairs += 1

    @asynccontextmanager
    async def dispatching(self, algorithmic_ceiling: int) -> AsyncIterator[TrialDispatcher]:
        """Run trials at the ceiling."""
        async with TrialDispatcher(
            self, limit=algorithmic_ceiling, trial_timeout_seconds=self.trial_seconds
        ) as dispatcher:
            yield dispatcher

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """A trial; every other place of a group earns the reward."""
        outcome = await self.act(ticket)
        sampled = make_trajectory(ticket.trial_id, outcome=outcome, reward=float(ticket.slot % 2))
        return sampled.model_copy(
            update={
                "group_id": ticket.group_id,
                "task": ticket.task,
                "domain": ticket.domain,
                "purpose": ticket.purpose,
                "start_version": ticket.start_version,
            }
        )


async def completes(_ticket: TrialTicket) -> Outcome:
    """A trial that ends by itself, after others had a turn."""
    return Outcome.COMPLETED


async def never_ends(_ticket: TrialTicket) -> Outcome:
    """A trial that hangs."""
    await asyncio.Event().wait()
    return Outcome.COMPLETED


def make_run(**changes: Any) -> RLRun:
    """A run of small batches."""
    small = {
        "spec__algorithm": {"groupSize": 2, "batchSize": 2, "minibatchSize": 2},
        "spec__async": {"maxStalenessSteps": 1},
        "spec__checkpoint": {"everySteps": 2, "keep": 9},
        "spec__report": {"trajectories": 4},
    }
    return RLRun.model_validate(run_manifest(**small, **changes))


def make_inputs(num_tasks: int = 12, num_validation: int = 2) -> Inputs:
    """Tasks by number."""

    def tasks(kind: str, count: int) -> list[TaskRef]:
        return [
            TaskRef(name, Path("nowhere"), "finance", digest=name, content_digest=name, has_solution=True)
            for name in (f"{kind}-{index:02d}" for index in range(count))
        ]

    return Inputs(Path("model"), tasks("train", num_tasks), tasks("validation", num_validation), tasks("held", 3), {})


def make_context(run: RLRun, stage: str, storage: RunStorage, cluster: NotedCluster) -> StageContext:
    """A stage of the run, not asked to stop."""
    telemetry = Telemetry("run", run.spec.stages, RunMetrics("default", "run"))
    wanted = stage_of(run, stage)
    telemetry.stage_started(wanted)
    return StageContext(wanted, run.spec, make_inputs(), storage, cluster, telemetry, LiveSpec(run), asyncio.Event())


def stage_of(run: RLRun, name: str) -> StageSpec:
    """A stage by name."""
    return next(stage for stage in run.spec.stages if stage.name == name)
