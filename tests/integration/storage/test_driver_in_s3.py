"""Training that is kept in S3: killed, it goes on elsewhere from what is there."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial_api.driver_request import DriverRequest
from seatrial_api.rlrun import RLRun
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_rollout.object_store.errors import StoreUnavailableError
from seatrial_trainer.driver.driver import Driver
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.storage.mirror import Mirror
from seatrial_trainer.storage.run_storage import RunStorage
from tests.object_stores import Bucket
from tests.training_doubles import Moment, NotedCluster, completes, make_inputs, make_run, never_ends

STEPS = 6
STAGES = [
    {"name": "before", "evaluate": {"checkpoint": "Initial", "passes": 1}},
    {"name": "train", "train": {"steps": STEPS, "validateEverySteps": 3}},
]


class KilledError(BaseException):
    """Stands for SIGKILL: nothing is saved or told on its way."""


def killed_at(moment: Moment, version: int) -> NotedCluster:
    def watch(now: Moment, of_version: int) -> None:
        if (now, of_version) == (moment, version):
            raise KilledError

    return NotedCluster(completes, watch)


async def drive(storage: RunStorage, cluster: NotedCluster, stages: Sequence[str] = ("train",)) -> list[StageReport]:
    """One attempt of a driver."""
    run: RLRun = make_run(spec__stages=STAGES)
    request = DriverRequest(run=run, base_dir=Path(), stages=list(stages))
    telemetry = Telemetry("run", run.spec.stages, RunMetrics("default", "run"))
    taken = await asyncio.to_thread(storage.taken_over)
    driver = Driver(request, make_inputs(), taken, cluster, telemetry, LiveSpec(run), asyncio.Event())  # type: ignore[arg-type]  a double
    async with asyncio.timeout(200):
        return await driver.run()


@pytest.mark.parametrize(
    ("moment", "version"), [("train", 0), ("save", 2), ("publish", 3), ("published", 5), ("train", 5), ("save", 6)]
)
async def test_a_killed_run_goes_on_in_a_fresh_folder_from_s3_alone(
    bucket: Bucket, tmp_path: Path, moment: Moment, version: int
) -> None:
    with pytest.raises((KilledError, BaseExceptionGroup)):
        await drive(RunStorage.open(tmp_path / "a", bucket.source()), killed_at(moment, version))
    logged = RunStorage.open(tmp_path / "a").stage("train").read_batches(0)
    assert len(logged) >= version - 1
    storage, cluster = RunStorage.open(tmp_path / "b", bucket.source()), NotedCluster(completes)
    (report,) = await drive(storage, cluster)
    assert report.result is StageResult.PASSED
    assert cluster.policy_now.versions == list(range(STEPS)), "every logged batch is in the weights once, in order"
    manifests = storage.stage("train").read_batches(0)
    assert manifests[: len(logged)] == logged
    group_ids = [group_id for manifest in manifests for group_id in manifest.group_ids]
    assert len(group_ids) == len(set(group_ids)) == 2 * STEPS
    assert [step["version"] for step in storage.stage("train").read_steps()] == list(range(1, STEPS + 1))
    assert sorted(storage.stage("train").checkpoints.scores()) == [3, 6]
    assert report.checkpoint == "s3://runs/team/run/stages/train/checkpoints/000006"


async def test_a_finished_stage_is_answered_from_s3_without_a_trial(bucket: Bucket, tmp_path: Path) -> None:
    first = await drive(RunStorage.open(tmp_path / "a", bucket.source()), NotedCluster(completes), ["before"])
    again = await drive(RunStorage.open(tmp_path / "b", bucket.source()), NotedCluster(never_ends), ["before"])
    assert again == first


async def test_steps_go_on_while_a_checkpoint_is_on_its_way(bucket: Bucket, tmp_path: Path) -> None:
    with bucket.holding("/checkpoints/") as released:

        def release_after_the_next_step(moment: Moment, version: int) -> None:
            if (moment, version) == ("published", 3):  # the checkpoint of version 2 is held until now
                assert not [key for key in bucket.stored_keys() if "/checkpoints/" in key]
                released.set()

        cluster = NotedCluster(completes, release_after_the_next_step)
        (report,) = await drive(RunStorage.open(tmp_path / "a", bucket.source()), cluster)
    assert report.result is StageResult.PASSED


async def test_a_lasting_outage_ends_the_attempt_and_the_next_one_loses_nothing(bucket: Bucket, tmp_path: Path) -> None:
    opened = RunStorage.open(tmp_path / "a", bucket.source())
    assert isinstance(opened.files, Mirror)
    impatient = replace(opened, files=replace(opened.files, store=bucket.store(patience_seconds=1.0)))
    with ExitStack() as outage:

        def break_down_at_the_third_step(moment: Moment, version: int) -> None:
            if (moment, version) == ("published", 3):
                outage.enter_context(bucket.out_of_order())

        cluster = NotedCluster(completes, break_down_at_the_third_step)
        with pytest.raises(StoreUnavailableError, match="the object store was not to be had for 1 s"):
            await drive(impatient, cluster)
    (report,) = await drive(RunStorage.open(tmp_path / "b", bucket.source()), NotedCluster(completes))
    assert report.result is StageResult.PASSED
