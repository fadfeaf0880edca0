"""A training stage on two ranks of megatron-core, placed as a gang, of which one dies in the middle of a step."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, override

import pytest
from safetensors.torch import load_file

from seatrial_api.spec.stages import TrainStage
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.driver import most_telling
from seatrial_trainer.driver.stages.train import train
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.errors import PolicyRankLostError
from seatrial_trainer.policy.group import PolicyGroup
from seatrial_trainer.policy.minibatch import build_minibatches
from seatrial_trainer.policy.protocol import PolicyBackend
from seatrial_trainer.policy.schedule import learning_rate
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from seatrial_trainer.weight_sync.protocol import SyncReport
from tests.integration.policy.conftest import VOCABULARY, local_ray, make_setup
from tests.training_doubles import NotedCluster, completes, make_context, make_run
from tests.trajectories import make_sequence

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own sockets and logs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

STEPS = 4
DIES_AT = 3
"""Version whose step the rank does not live to end; the checkpoint before it is of version 2."""
LAYERS_BEFORE_IT_DIES = 20
SETUP = make_setup(backend="megatron", ranks=2, parallelism={"tensor": 2}, max_tokens_per_microbatch=32)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with local_ray(2):
        yield


class MortalGroup(PolicyGroup):
    """Ranks of which the second may be told to die in the middle of a step."""

    dies_at: int | None = None

    @override
    async def train_minibatch(self, minibatch: Minibatch, learning_rate: float) -> tuple[StepStats, OptimStats]:
        if self.dies_at is not None and minibatch.fresh_version == self.dies_at:

            def die_soon(_actor: Any) -> None:
                from torch.nn.modules.module import register_module_forward_hook  # noqa: PLC0415  in the rank

                layers = itertools.count()
                register_module_forward_hook(
                    lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(layers) == LAYERS_BEFORE_IT_DIES else None
                )

            await self.ranks[1].__ray_call__.remote(die_soon)
        return await super().train_minibatch(minibatch, learning_rate)


@dataclass
class RankCluster(NotedCluster):
    """Real policy ranks; engines are in memory and know the weights they were given last."""

    model: Path = Path()
    exports: Path = Path()
    dies_at: int | None = None
    group: MortalGroup | None = None

    @override
    async def policy(self, *, fresh: bool = False) -> Any:
        if fresh:
            self.stop()
        if self.group is None:
            self.group = await MortalGroup.start(SETUP, self.model, timeout_seconds=240)
            self.group.dies_at = self.dies_at
        return self.group

    @override
    async def publish(self, version: int) -> SyncReport:
        num_bytes = await (await self.policy()).export(self.exports / str(version))
        self.served.append(version)
        return SyncReport(seconds=0.0, paused_seconds=0.0, bytes=num_bytes, num_engines=1)

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        trajectory = await super().run(ticket)
        sampled = [(7 * ticket.slot + step) % VOCABULARY for step in range(6)]
        sequence = make_sequence([1, 2, 3 + ticket.slot], sampled, logprob=-4.1, version=ticket.start_version)
        turns = [turn.model_copy(update={"stop": turn.start + len(sampled)}) for turn in trajectory.turns]
        return trajectory.model_copy(update={"sequences": [sequence], "turns": turns})

    def stop(self) -> None:
        """End the ranks."""
        if self.group is not None:
            self.group.stop()
        self.group = None


def context_of(storage: RunStorage, cluster: RankCluster) -> StageContext:
    run = make_run(spec__stages__3__train={"steps": STEPS}, spec__guards={"maxLogprobDiff": 9})
    return make_context(run, "train", storage, cluster)


async def attempt(context: StageContext) -> None:
    """Train; what ends the stage is raised as the driver tells it."""
    assert isinstance(context.stage.train, TrainStage)
    try:
        async with asyncio.timeout(300):
            await train(context, context.stage.train)
    except Exception as error:  # noqa: BLE001  what a driver does with it
        raise most_telling(error) from None


def replayed(backend: PolicyBackend, context: StageContext) -> list[list[tuple[StepStats, OptimStats]]]:
    """What a backend makes of the batches that were logged, step by step."""
    spec, storage = context.spec, context.storage
    steps = []
    for manifest in storage.read_batches(0):
        rate = learning_rate(manifest.version, STEPS, spec.algorithm.optimizer)
        groups = [storage.read_group(group_id) for group_id in manifest.group_ids]
        minibatches = build_minibatches(groups, spec.algorithm, spec.data.domains, version=manifest.version)
        steps.append([(backend.forward_backward(minibatch), backend.optim_step(rate)) for minibatch in minibatches])
    return steps


async def test_a_rank_that_dies_in_a_step_ends_it_and_the_stage_goes_on_from_the_checkpoint(
    cluster: None, model_path: Path, tmp_path: Path
) -> None:
    storage = RunStorage(tmp_path / "run")
    ranks = RankCluster(completes, model=model_path, exports=tmp_path / "exports", dies_at=DIES_AT)
    context = context_of(storage, ranks)
    try:
        with pytest.raises(PolicyRankLostError, match="policy rank 1 died during train_minibatch") as caught:
            await attempt(context)
        assert caught.value.rank == 1
        assert context.storage.checkpoints.versions() == [2]
        assert ranks.served[-1] == DIES_AT

        ranks.dies_at = None
        await attempt(context_of(storage, ranks))
    finally:
        ranks.stop()
    assert [step["version"] for step in context.storage.read_steps()] == list(range(1, STEPS + 1))

    alone = TorchBackend(replace(PolicySetup.from_run(context.spec), model=SETUP.model), model_path)
    expected = replayed(alone, context)
    for record, (*_, (stats, optim)) in zip(context.storage.read_steps(), expected, strict=True):
        assert record["entropy"] == pytest.approx(stats.entropy, rel=1e-4)
        assert record["grad_norm"] == pytest.approx(optim.grad_norm, rel=1e-3)
    exported = load_file(tmp_path / "exports" / str(STEPS) / "model.safetensors")
    wanted = dict(alone.export_weights())
    assert exported.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert exported[name].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-5), name
