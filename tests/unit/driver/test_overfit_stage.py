"""Overfit: learns on few tasks, and holds the engine against the trainer, across syncs in flight too."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.stages import OverfitStage
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_trainer.driver.stages.overfit import overfit
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from seatrial_trainer.weight_sync.protocol import SyncReport
from tests.training_doubles import NotedCluster, completes, make_context, make_run

STEPS = 4


@dataclass
class SwitchingCluster(NotedCluster):
    """A probe samples two tokens, waits for the next sync, and samples two more under the new weights.

    The trainer gives every token a log probability of 0, so what an engine says is what it is wrong by.
    """

    wrong_by: float = 0.01
    """After a sync in flight."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    probes: list[str] = field(default_factory=list)

    @override
    async def publish(self, version: int) -> SyncReport:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.probes) >= 4 * min(version, 3))
            report = await super().publish(version)
            self.changed.notify_all()
        return report

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        if not ticket.purpose.endswith("-probe"):
            return await super().run(ticket)
        version = ticket.start_version
        async with self.changed:
            self.probes.append(ticket.trial_id)
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.served[-1] > version)
        sequence = TokenSequence(
            token_ids=[1, 2, 3, 4, 5, 6],
            loss_mask=[0, 1, 1, 0, 1, 1],
            logprobs=[0.0, -9.0, -9.0, 0.0, -self.wrong_by, -self.wrong_by],
            weight_versions=[-1, version, version, -1, version + 1, version + 1],
        )
        ended = ticket.without_result(Outcome.CANCELLED, "")
        return ended.model_copy(update={"outcome": Outcome.COMPLETED, "reward": 1.0, "sequences": [sequence]})


async def run_overfit(storage: RunStorage, cluster: NotedCluster) -> StageReport:
    overfitting = {"tasks": 2, "groupSize": 2, "steps": STEPS, "minRewardGain": -1.0}
    run = make_run(spec__stages__2={"name": "overfit", "overfit": overfitting})
    context = make_context(run, "overfit", storage, cluster)
    stage = context.stage.overfit
    assert isinstance(stage, OverfitStage)
    async with asyncio.timeout(60):
        return await overfit(context, stage)


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path)


async def test_tokens_sampled_after_a_sync_in_flight_are_part_of_the_gate(storage: RunStorage) -> None:
    cluster = SwitchingCluster(completes)
    report = await run_overfit(storage, cluster)
    gate = report.gates[0]
    assert gate.value == pytest.approx(0.01), "not the tokens of the old weights, which are 9 off"
    assert gate.passed
    assert gate.detail == "24 tokens sampled after a sync in flight included: 0.0100"
    steps = storage.stage("overfit").read_steps()
    assert [step["in_flight_tokens"] for step in steps] == [8, 8, 8, 0]


async def test_a_sync_that_arrives_damaged_in_flight_fails_the_gate(storage: RunStorage) -> None:
    report = await run_overfit(storage, SwitchingCluster(completes, wrong_by=0.5))
    assert report.result is StageResult.GATE_FAILED
    assert report.gates[0].value == pytest.approx(0.5)


async def test_probes_are_neither_stored_nor_trained(storage: RunStorage) -> None:
    cluster = SwitchingCluster(completes)
    await run_overfit(storage, cluster)
    assert cluster.probes
    stored = list(storage.trajectories())
    assert {one.purpose for one in stored} == {"overfit"}
    assert len(stored) == STEPS * 2 * 2


async def test_where_no_trial_is_in_flight_the_gate_says_so(storage: RunStorage) -> None:
    report = await run_overfit(storage, NotedCluster(completes))
    assert report.gates[0].detail == "0 tokens sampled after a sync in flight included"
