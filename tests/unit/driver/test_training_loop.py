import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.outcome import Outcome
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.stages import TrainStage
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_api.status import CheckpointStatus
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.driver import most_telling
from seatrial_trainer.driver.stages.train import train
from seatrial_trainer.driver.stopping import StopRequestedError
from seatrial_trainer.driver.training import GuardedError
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from tests.training_doubles import Moment, NotedCluster, completes, make_context, make_run, never_ends

STEPS = 6


class KilledError(Exception):
    """Stands for SIGKILL: nothing is saved on its way."""


def run_of(**changes: Any) -> RLRun:
    stage = {"steps": STEPS, "validateEverySteps": 3}
    return make_run(spec__stages__3__train=stage, **changes)


def context_of(storage: RunStorage, cluster: NotedCluster, **changes: Any) -> StageContext:
    return make_context(run_of(**changes), "train", storage, cluster)


async def attempt(context: StageContext) -> StageReport:
    """Train; whatever ends the stage is raised without the groups around it."""
    stage = context.stage.train
    assert isinstance(stage, TrainStage)
    try:
        async with asyncio.timeout(20):
            return await train(context, stage)
    except Exception as error:  # noqa: BLE001  what a driver does with it
        raise most_telling(error) from None


def assert_trained_once(storage: RunStorage, cluster: NotedCluster) -> None:
    """Every logged batch is in the weights once, in order, and no group is in two batches."""
    manifests = storage.stage("train").read_batches(0)
    assert [manifest.version for manifest in manifests] == list(range(STEPS))
    group_ids = [group_id for manifest in manifests for group_id in manifest.group_ids]
    assert len(group_ids) == len(set(group_ids)) == 2 * STEPS
    assert cluster.policy_now.versions == list(range(STEPS))


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path)


async def test_every_version_is_trained_served_and_measured_once(storage: RunStorage) -> None:
    cluster = NotedCluster(completes)
    report = await attempt(context_of(storage, cluster))
    assert report.result is StageResult.PASSED
    assert cluster.served == list(range(STEPS + 1))
    assert_trained_once(storage, cluster)
    stage = storage.stage("train")
    assert [step["version"] for step in stage.read_steps()] == list(range(1, STEPS + 1))
    assert sorted(stage.checkpoints.scores()) == [3, 6]


async def test_steps_go_on_while_a_checkpoint_is_written(storage: RunStorage) -> None:
    def note(moment: Moment, version: int) -> None:
        if (moment, version) == ("save", 2):
            cluster.policy_now.may_write.clear()
        if (moment, version) == ("published", 3):
            assert storage.stage("train").checkpoints.versions() == []
            cluster.policy_now.may_write.set()

    cluster = NotedCluster(completes, note)
    report = await attempt(context_of(storage, cluster))
    assert report.result is StageResult.PASSED
    assert_trained_once(storage, cluster)


async def test_a_stop_waits_for_the_checkpoint_that_it_makes(storage: RunStorage) -> None:
    def note(moment: Moment, version: int) -> None:
        if (moment, version) == ("published", 1):
            cluster.policy_now.may_write.clear()
            context.stop.set()
            asyncio.get_running_loop().call_later(0.05, cluster.policy_now.may_write.set)

    cluster = NotedCluster(completes, note)
    context = context_of(storage, cluster)
    with pytest.raises(StopRequestedError):
        await attempt(context)
    assert storage.stage("train").checkpoints.versions() == [1]


async def test_a_checkpoint_that_cannot_be_written_ends_the_stage_and_the_one_before_stays(storage: RunStorage) -> None:
    def note(moment: Moment, version: int) -> None:
        if (moment, version) == ("written", 4):
            raise OSError(errno.ENOSPC, "No space left on device", "weights")

    with pytest.raises(OSError, match="No space left on device"):
        await attempt(context_of(storage, NotedCluster(completes, note)))
    checkpoints = storage.stage("train").checkpoints
    assert checkpoints.versions() == [2, 3]
    assert not [path for path in checkpoints.root.iterdir() if path.name.startswith(".")]
    resumed = NotedCluster(completes)
    await attempt(context_of(storage, resumed))
    assert_trained_once(storage, resumed)


async def test_checkpoints_are_told_while_the_stage_runs_and_by_the_attempt_that_goes_on(storage: RunStorage) -> None:
    def note(moment: Moment, version: int) -> None:
        if (moment, version) == ("save", 6):
            told.append(context.telemetry.snapshot().checkpoints)
            raise KilledError

    told: list[CheckpointStatus | None] = []
    context = context_of(storage, NotedCluster(completes, note))
    with pytest.raises(KilledError):
        await attempt(context)
    (halfway,) = told
    assert halfway is not None
    assert halfway.last is not None
    assert halfway.last.step == 4
    resumed = context_of(storage, killed_at("train", 5))
    with pytest.raises(KilledError):
        await attempt(resumed)
    going_on = resumed.telemetry.snapshot().checkpoints
    assert going_on is not None
    assert going_on.best is not None
    assert (going_on.best.step, going_on.best.uri) == (3, str(storage.stage("train").checkpoints.root / "000003"))


def killed_at(moment: Moment, version: int) -> NotedCluster:
    def watch(now: Moment, of_version: int) -> None:
        if (now, of_version) == (moment, version):
            raise KilledError

    return NotedCluster(completes, watch)


@pytest.mark.parametrize(
    ("moment", "version"),
    [
        *(("train", version) for version in range(STEPS)),
        *(("publish", version) for version in range(1, STEPS + 1)),
        *(("published", version) for version in range(1, STEPS + 1)),
        *(("save", version) for version in (2, 3, 4, 6)),
    ],
)
async def test_a_killed_run_trains_each_logged_batch_once_and_owes_nothing(
    storage: RunStorage, moment: Moment, version: int
) -> None:
    with pytest.raises(KilledError):
        await attempt(context_of(storage, killed_at(moment, version)))
    logged = [manifest.group_ids for manifest in storage.stage("train").read_batches(0)]
    resumed = NotedCluster(completes)
    report = await attempt(context_of(storage, resumed))
    assert report.result is StageResult.PASSED
    assert_trained_once(storage, resumed)
    manifests = storage.stage("train").read_batches(0)
    assert [manifest.group_ids for manifest in manifests][: len(logged)] == logged
    assert resumed.served[-1] == STEPS
    told = [step["version"] for step in storage.stage("train").read_steps()]
    assert told == list(range(1, STEPS + 1)), "a step that was not told is told by its replay"
    checkpoints = storage.stage("train").checkpoints
    assert sorted(checkpoints.scores()) == [3, 6], "what the killed attempt did not come to validate is validated"
    newest = checkpoints.latest()
    assert newest is not None
    assert newest.manifest.version == STEPS


async def test_a_resumed_run_counts_only_groups_that_leave_it_now(storage: RunStorage) -> None:
    with pytest.raises(KilledError):
        await attempt(context_of(storage, killed_at("publish", 3)))
    context = context_of(storage, NotedCluster(completes))
    await attempt(context)
    text = generate_latest(context.telemetry.metrics.registry).decode()
    assert f'seatrial_groups_total{{namespace="default",result="Trained",run="run"}} {2 * (STEPS - 3)}.0' in text


async def test_a_run_tells_the_reward_of_the_newest_groups_that_were_admitted_together_and_are_all_trained(
    storage: RunStorage,
) -> None:
    class Improving(NotedCluster):
        async def run(self, ticket: TrialTicket) -> Trajectory:
            reward = float((1 + ticket.start_version) * (ticket.slot % 2))
            return (await super().run(ticket)).model_copy(update={"reward": reward})

    context = context_of(storage, Improving(completes))
    await attempt(context)
    text = generate_latest(context.telemetry.metrics.registry).decode()
    cohort = STEPS - 1 - context.spec.async_.max_staleness_steps
    assert f'seatrial_cohort_reward{{namespace="default",run="run"}} {(1 + cohort) / 2}' in text


async def test_a_run_killed_when_all_is_trained_still_reports(storage: RunStorage) -> None:
    await attempt(context_of(storage, NotedCluster(completes)))
    report = await attempt(context_of(storage, NotedCluster(completes)))
    assert report.metrics["staleness_max"] >= 0
    assert "6 steps" in report.message


async def test_stored_groups_are_trained_and_not_run_again(storage: RunStorage) -> None:
    with pytest.raises(KilledError):
        await attempt(context_of(storage, killed_at("publish", 2)))
    stored = set(storage.stage("train").group_ids())
    await attempt(context_of(storage, NotedCluster(completes)))
    manifests = storage.stage("train").read_batches(0)
    trained = {group_id for manifest in manifests for group_id in manifest.group_ids}
    assert {group_id for group_id in stored if group_id.startswith("train-")} <= trained


async def test_a_damaged_newest_checkpoint_is_made_anew_where_it_is_due(storage: RunStorage) -> None:
    with pytest.raises(KilledError):
        await attempt(context_of(storage, killed_at("save", 6)))
    checkpoints = storage.stage("train").checkpoints
    assert checkpoints.versions() == [2, 3, 4]
    for version in (3, 4):
        (checkpoints.open(version).policy / "weights.json").write_text("[]")
    resumed = NotedCluster(completes)
    report = await attempt(context_of(storage, resumed))
    assert report.result is StageResult.PASSED
    assert_trained_once(storage, resumed)
    assert [one.manifest.version for one in checkpoints.whole(checkpoints.versions())] == [2, 3, 4, 6]
    assert sorted(checkpoints.scores()) == [3, 6], "what was validated of damaged weights is validated anew"
    assert sorted(path.name for path in checkpoints.root.glob("damaged-*")) == ["damaged-000003", "damaged-000004"]


async def test_guards_that_change_while_the_run_goes_on_hold_from_the_next_step(storage: RunStorage) -> None:
    def tighten(moment: Moment, version: int) -> None:
        if (moment, version) == ("published", 2):
            context.live.change(b'{"concurrency": "Auto", "guards": {"minEntropy": 1.5}}')

    context = context_of(storage, NotedCluster(completes, tighten))
    with pytest.raises(GuardedError, match="minEntropy"):
        await attempt(context)
    assert storage.stage("train").checkpoints.versions() == [2]


async def test_a_stop_is_heard_while_logged_batches_are_trained_again(storage: RunStorage) -> None:
    with pytest.raises(KilledError):
        await attempt(context_of(storage, killed_at("train", 5)))
    shutil.rmtree(storage.stage("train").checkpoints.root)

    def stop(moment: Moment, version: int) -> None:
        if (moment, version) == ("train", 0):
            context.stop.set()

    context = context_of(storage, NotedCluster(completes, stop))
    assert await _stopped(context) is StopRequestedError
    assert storage.stage("train").checkpoints.versions() == [1]


async def test_a_guard_that_fires_leaves_a_checkpoint_of_that_step_and_is_silent_after(storage: RunStorage) -> None:
    guards = {"minEntropy": 1.5, "rearmSteps": STEPS}
    with pytest.raises(GuardedError, match=r"minEntropy.*1 against a bound of 1\.5"):
        await attempt(context_of(storage, NotedCluster(completes), spec__guards=guards))
    assert storage.stage("train").checkpoints.versions() == [1]
    resumed = NotedCluster(completes)
    report = await attempt(context_of(storage, resumed, spec__guards=guards))
    assert report.result is StageResult.PASSED
    assert_trained_once(storage, resumed)


async def test_a_guard_that_fired_is_silent_for_as_many_batches_as_it_says(storage: RunStorage) -> None:
    guards = {"minEntropy": 1.5, "rearmSteps": 2}
    for version in (1, 4):
        with pytest.raises(GuardedError):
            await attempt(context_of(storage, NotedCluster(completes), spec__guards=guards))
        assert storage.stage("train").checkpoints.versions()[-1] == version


async def test_a_stop_while_waiting_for_a_batch_saves_a_checkpoint(storage: RunStorage) -> None:
    async def hangs_later(ticket: TrialTicket) -> Outcome:
        return await (completes if ticket.start_version < 1 else never_ends)(ticket)

    context = context_of(storage, NotedCluster(hangs_later))
    async with asyncio.TaskGroup() as tasks:
        training = tasks.create_task(_stopped(context))
        deadline = Deadline.after(10)
        while len(storage.stage("train").read_steps()) < 2:
            deadline.check("two steps")
            await SYSTEM_CLOCK.sleep(0.01)
        context.stop.set()
    assert await training is StopRequestedError
    assert storage.stage("train").checkpoints.versions() == [2]


async def test_a_stop_is_heard_although_batches_never_have_to_be_waited_for(storage: RunStorage) -> None:
    stops: list[asyncio.Event] = []

    def press_ctrl_c(moment: Moment, version: int) -> None:
        if (moment, version) == ("published", 2):
            stops[0].set()

    context = context_of(storage, NotedCluster(completes, press_ctrl_c))
    stops.append(context.stop)
    assert await _stopped(context) is StopRequestedError
    assert storage.stage("train").checkpoints.versions() == [2]


async def test_a_stop_during_validation_saves_and_a_resumed_run_validates(storage: RunStorage) -> None:
    stops: list[asyncio.Event] = []

    async def hangs_in_validation(ticket: TrialTicket) -> Outcome:
        if ticket.purpose != "validation":
            return Outcome.COMPLETED
        stops[0].set()
        return await never_ends(ticket)

    context = context_of(storage, NotedCluster(hangs_in_validation))
    stops.append(context.stop)
    assert await _stopped(context) is StopRequestedError
    checkpoints = storage.stage("train").checkpoints
    assert checkpoints.scores() == {}
    assert checkpoints.versions()[-1] in {3, 4}
    await attempt(context_of(storage, NotedCluster(completes)))
    assert sorted(checkpoints.scores()) == [3, 6]


async def test_a_stop_during_the_last_validation_does_not_pass_the_stage(storage: RunStorage) -> None:
    stops: list[asyncio.Event] = []

    async def hangs_in_the_last_validation(ticket: TrialTicket) -> Outcome:
        if ticket.purpose != "validation" or ticket.start_version < STEPS:
            return Outcome.COMPLETED
        stops[0].set()
        return await never_ends(ticket)

    context = context_of(storage, NotedCluster(hangs_in_the_last_validation))
    stops.append(context.stop)
    assert await _stopped(context) is StopRequestedError
    report = await attempt(context_of(storage, NotedCluster(completes)))
    assert report.result is StageResult.PASSED
    assert sorted(storage.stage("train").checkpoints.scores()) == [3, 6]


async def test_the_weights_stand_still_until_validation_has_ended(storage: RunStorage) -> None:
    may_end = asyncio.Event()
    validating = asyncio.Event()

    async def holds_validation(ticket: TrialTicket) -> Outcome:
        if ticket.purpose == "validation" and ticket.start_version == 3:
            validating.set()
            await may_end.wait()
        return Outcome.COMPLETED

    cluster = NotedCluster(holds_validation)
    context = context_of(storage, cluster)
    async with asyncio.TaskGroup() as tasks:
        training = tasks.create_task(attempt(context))
        await validating.wait()
        deadline = Deadline.after(10)
        while "validation" not in context.telemetry.snapshot().activity:
            deadline.check("the step to wait for validation")
            await SYSTEM_CLOCK.sleep(0.01)
        assert cluster.policy_now.versions[-1] == 3, "the step itself does not wait"
        assert cluster.served[-1] == 3
        may_end.set()
    assert (await training).result is StageResult.PASSED
    assert cluster.served == list(range(STEPS + 1))


async def test_a_full_disk_fails_the_stage_with_the_path_and_loses_nothing(storage: RunStorage) -> None:
    context = context_of(storage, NotedCluster(completes))
    folder = storage.root / "trajectories" / "train"
    folder.parent.mkdir()
    folder.write_text("in the way")
    with pytest.raises(OSError, match=str(folder)):
        await attempt(context)
    folder.unlink()
    cluster = NotedCluster(completes)
    assert (await attempt(context_of(storage, cluster))).result is StageResult.PASSED
    assert_trained_once(storage, cluster)


async def _stopped(context: StageContext) -> type[BaseException] | None:
    """What a stop ends the stage with."""
    try:
        await attempt(context)
    except StopRequestedError as stopped:
        return type(stopped)
    return None
