"""Evaluate: every setting is measured, and held against the Initial evaluation of the same setting."""

import asyncio
import json
from pathlib import Path
from typing import override

import pyarrow.parquet as pq
import pytest

from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.stage_report import StageReport
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.stages.evaluate import evaluate
from seatrial_trainer.reporting import evaluations
from seatrial_trainer.reporting.changes import changes
from seatrial_trainer.reporting.results import Results, write_results
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RESULTS_FILE, TRIALS_FILE, RunStorage
from tests.training_doubles import NotedCluster, completes, make_context, make_run

HARNESSES = ["archipelago", "opencode"]


class GainingCluster(NotedCluster):
    """What was trained solves all, under the harness that it was trained with."""

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        tried = await super().run(ticket)
        harness = next(name for name in HARNESSES if name in ticket.purpose)
        is_trained = ticket.purpose.startswith("after") and harness == "archipelago"
        return tried.model_copy(update={"harness": harness} | ({"reward": 1.0} if is_trained else {}))


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    storage = RunStorage(tmp_path)
    with storage.stage("train").checkpoints.writing(7, {}) as folder:
        (folder / "model").mkdir()
    return storage


def run_of(passes: int) -> RLRun:
    asked = {"passes": passes, "harnesses": HARNESSES}
    return make_run(
        spec__stages__1__evaluate={"checkpoint": "Initial", **asked},
        spec__stages__4__evaluate={"checkpoint": "Best", "minGain": 0.1, **asked},
        spec__cost={"promptMillionTokens": 1.0},
    )


async def run_stage(run: RLRun, stage: str, storage: RunStorage) -> StageReport:
    context = make_context(run, stage, storage, GainingCluster(completes))
    asked = context.stage.evaluate
    assert asked is not None
    async with asyncio.timeout(60):
        report = await evaluate(context, asked)
    storage.stage(stage).write_report(report)
    return report


async def test_a_gain_is_told_for_every_harness_and_gates_look_at_the_first(storage: RunStorage) -> None:
    run = run_of(passes=4)
    before = await run_stage(run, "before", storage)
    after = await run_stage(run, "after", storage)
    assert [one.gain for one in before.evaluations] == [None, None]
    ours, others = after.evaluations
    assert (ours.harness, others.harness) == ("archipelago", "opencode")
    assert ours.gain is not None
    assert others.gain is not None
    assert (ours.gain.mean, ours.gain.count, others.gain.mean) == (0.5, 3, 0.0)
    assert [gate.value for gate in after.gates] == [0.5]
    measured = evaluations.lines([before, after])
    transferred = evaluations.transfer(measured, trained_with="archipelago")
    shown = [(line.harness, line.before.pass_at_1.mean, line.after.pass_at_1.mean) for line in transferred]
    assert shown == [("archipelago", 0.5, 1.0), ("opencode", 0.5, 0.5)]
    assert evaluations.transfer(evaluations.lines([before]), "archipelago") == []


async def test_results_are_left_for_programs(storage: RunStorage) -> None:
    folder = storage.root
    assert write_results(folder) == []
    run = run_of(passes=2)
    request = DriverRequest(run=run, base_dir=folder, stages=["before"])
    (folder / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
    (folder / "usage.json").write_text(json.dumps({"prompt_tokens": 2e6}))
    report = await run_stage(run, "before", storage)
    assert write_results(folder) == [folder / RESULTS_FILE, folder / TRIALS_FILE]
    results = Results.model_validate_json((folder / RESULTS_FILE).read_bytes())
    measured = results.stages["before"]
    assert [one.model_dump(exclude={"dollars"}) for one in measured] == [r.model_dump() for r in report.evaluations]
    (tokens, dollars), _ = [(one.tokens, one.dollars) for one in measured]
    assert tokens is not None
    assert (tokens.harness, tokens.trials, tokens.prompt_tokens, tokens.completion_tokens) == ("archipelago", 6, 18, 24)
    assert dollars == pytest.approx(18e-6)
    assert results.dollars == 2.0
    assert results.model.path == str(folder / "model")
    rows = pq.read_table(folder / TRIALS_FILE).to_pylist()
    assert len(rows) == 3 * 2 * len(HARNESSES)
    assert {(row["task_set"], row["temperature"], row["harness"]) for row in rows} == {
        ("held-out", 1.0, harness) for harness in HARNESSES
    }
    assert sum(row["passed"] for row in rows) == len(rows) / 2
    assert rows[0]["turns"] == 1.0


async def test_two_folders_are_held_against_each_other_task_by_task(storage: RunStorage, tmp_path: Path) -> None:
    run, folders = run_of(passes=2), [tmp_path / "first", tmp_path / "second"]
    await run_stage(run, "before", storage)
    for folder, stages in zip(folders, (["before"], ["before", "after"]), strict=True):
        if "after" in stages:
            await run_stage(run, "after", storage)
        request = DriverRequest(run=run, base_dir=tmp_path, stages=stages)
        (storage.root / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
        write_results(storage.root)
        folder.mkdir()
        (storage.root / TRIALS_FILE).rename(folder / TRIALS_FILE)
    found = {change.harness: change for change in changes(*folders)}
    gains = {harness: change.gain.mean for harness, change in found.items() if change.gain}
    assert (found["archipelago"].before.mean, found["archipelago"].name) == (0.5, "held-out T=1")
    assert gains == {"archipelago": 0.5, "opencode": 0.0}
    with pytest.raises(InvalidInputError, match=r"has no trials\.parquet"):
        changes(tmp_path / "nowhere", folders[0])
