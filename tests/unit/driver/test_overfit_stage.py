"""Overfit: learns on few tasks, and holds the engine against the trainer, across syncs in flight too."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.stages import OverfitStage
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_trainer.driver.stages.overfit import overfit
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from seatrial_trainer.weight_sync.protocol import SyncReport
from tests.training_doubles import NotedCluster, completes, make_context, make_run

STEPS = 4


@dataclass
class SwitchingCluster(NotedCluster):
    """A probe samples two tokens once engines were looked at twice, waits for the next sync, and samples two more.

    The trainer gives every token a log probability of 0, so what an engine says is what it is wrong by.
    """

    wrong_by: float = 0.01
    """After a sync in flight."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    num_looks: int = 0
    num_sampling: int = 0
    num_sampled: int = 100
    """Tokens of trials before."""
    probes: list[str] = field(default_factory=list)

    @override
    async def engine_metrics(self) -> PoolMetrics:
        async with self.changed:
            self.num_looks += 1
            self.changed.notify_all()
        return PoolMetrics(running=self.num_sampling, generated_tokens_total=self.num_sampled)

    @override
    async def publish(self, version: int) -> SyncReport:
        async with self.changed:
            report = await super().publish(version)
            self.changed.notify_all()
        return report

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        if not ticket.purpose.endswith("-probe"):
            return await super().run(ticket)
        self.probes.append(ticket.trial_id)
        version, set_up = ticket.start_version, self.num_looks + 2
        async with self.changed:
            await self.changed.wait_for(lambda: self.num_looks >= set_up or self.served[-1] > version)
            sampled_by = self.served[-1]
            self.num_sampling += 1
            self.num_sampled += 2
            await self.changed.wait_for(lambda: self.served[-1] > version)
            self.num_sampling -= 1
        sequence = TokenSequence(
            token_ids=[1, 2, 3, 4, 5, 6],
            loss_mask=[0, 1, 1, 0, 1, 1],
            logprobs=[0.0, -9.0, -9.0, 0.0, -self.wrong_by, -self.wrong_by],
            weight_versions=[-1, sampled_by, sampled_by, -1, version + 1, version + 1],
        )
        ended = ticket.without_result(Outcome.CANCELLED, "")
        return ended.model_copy(update={"outcome": Outcome.COMPLETED, "reward": 1.0, "sequences": [sequence]})


async def run_overfit(storage: RunStorage, cluster: NotedCluster, *, num_tasks: int = 2, **changes: Any) -> StageReport:
    overfitting = {"tasks": num_tasks, "groupSize": 2, "steps": STEPS, "minRewardGain": -1.0}
    run = make_run(spec__stages__2={"name": "overfit", "overfit": overfitting}, **changes)
    context = make_context(run, "overfit", storage, cluster)
    stage = context.stage.overfit
    assert isinstance(stage, OverfitStage)
    async with asyncio.timeout(60):
        return await overfit(context, stage)


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path)


async def test_a_sync_waits_for_trials_to_sample_and_what_they_sample_next_has_a_gate(storage: RunStorage) -> None:
    report = await run_overfit(storage, SwitchingCluster(completes))
    whole, in_flight, _ = report.gates
    assert (whole.value, whole.passed) == (0.0, True)
    assert in_flight.value == pytest.approx(0.01), "not the tokens of the old weights, which are 9 off"
    assert in_flight.passed
    assert in_flight.detail.startswith("24 tokens of trials")
    steps = storage.stage("overfit").read_steps()
    assert [step["in_flight_tokens"] for step in steps] == [8, 8, 8, 0]


async def test_a_sync_that_arrives_damaged_in_flight_fails_however_sound_whole_groups_are(storage: RunStorage) -> None:
    report = await run_overfit(storage, SwitchingCluster(completes, wrong_by=0.05))
    assert report.result is StageResult.GATE_FAILED
    assert [gate.passed for gate in report.gates] == [True, False, True]
    assert report.gates[1].value == pytest.approx(0.05)


async def test_probes_are_neither_stored_nor_trained(storage: RunStorage) -> None:
    cluster = SwitchingCluster(completes)
    await run_overfit(storage, cluster)
    assert cluster.probes
    stored = list(storage.trajectories())
    assert {one.purpose for one in stored} == {"overfit"}
    assert len(stored) == STEPS * 2 * 2


async def test_a_gate_on_syncs_in_flight_fails_where_no_trial_was(storage: RunStorage) -> None:
    async def no_sandbox(ticket: TrialTicket) -> Outcome:
        return Outcome.SANDBOX_FAILED if ticket.purpose.endswith("-probe") else Outcome.COMPLETED

    report = await run_overfit(storage, NotedCluster(no_sandbox))
    assert [(gate.value, gate.passed) for gate in report.gates[:2]] == [(0.0, True), (None, False)]
    assert report.gates[1].detail.startswith("0 tokens")


async def test_a_batch_is_every_task_once_whatever_the_shares_of_their_domains(storage: RunStorage) -> None:
    domains = [{"name": "finance"}, {"name": "law", "weight": 3}]  # of which no task is
    await run_overfit(storage, SwitchingCluster(completes), num_tasks=3, spec__data__domains=domains)
    stage = storage.stage("overfit")
    for manifest in stage.read_batches(0):
        tried = [stage.read_group(group_id)[0].task for group_id in manifest.group_ids]
        assert sorted(tried) == ["train-00", "train-01", "train-02"]
