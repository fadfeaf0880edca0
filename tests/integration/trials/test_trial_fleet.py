"""Trial hosts as Ray actors: trials are spread, and a host that dies is replaced."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import ray
from structlog.testing import capture_logs

from seatrial_api.errors import InvalidInputError
from seatrial_api.outcome import Outcome
from seatrial_rollout.trials.fleet import TrialFleet
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.spawn import HostConfig
from tests.leftovers import eventually, processes_using
from tests.trial_tasks import make_request, write_trial_task

WAITING = "tests.odd_harnesses:Waiting"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(config: HostConfig) -> AsyncIterator[TrialFleet]:
    folder = Path(tempfile.mkdtemp(prefix="sf-"))
    scratch = folder / "scratch"
    scratch.mkdir()
    ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=str(folder / "ray"), log_to_driver=False)
    fleet = TrialFleet(HostConfig(config.model_path, scratch, config.env, config.grace_seconds), num_hosts=2)
    try:
        await fleet.start()
        yield fleet
        await fleet.stop()
        await eventually(lambda: not processes_using(scratch), what="all trial processes to end")
        assert list(scratch.iterdir()) == []
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


async def test_trials_are_spread_over_the_hosts(fleet: TrialFleet, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    async with asyncio.TaskGroup() as group:
        trials = [
            group.create_task(fleet.run(make_request(task, trial_id=str(number), mode=TrialMode.ORACLE)))
            for number in range(8)
        ]
        await eventually(lambda: fleet.num_in_flight == 8, what="all trials to be handed out")
        assert [len(member.trial_ids) for member in fleet._members] == [4, 4]
    assert [(trial.result().reward, trial.result().detail) for trial in trials] == [(1.0, "")] * 8
    assert fleet.num_in_flight == 0
    assert await fleet.cpu_seconds() > 0


async def test_hosts_that_cannot_load_a_harness_say_so_in_a_sentence(fleet: TrialFleet, config: HostConfig) -> None:
    refused = TrialFleet(replace(config, harnesses=("no.such:Agent",)), num_hosts=1)
    try:
        with pytest.raises(InvalidInputError) as error:
            await refused.start()
    finally:
        await refused.stop()
    assert "\n" not in str(error.value)
    assert "no.such:Agent cannot be loaded where trials run" in str(error.value)


async def test_a_word_of_trials_to_come_that_no_broker_hears_is_no_harm(fleet: TrialFleet) -> None:
    with capture_logs() as logs:
        await fleet.expect({"office": 3})
    (told,) = logs
    assert told["event"] == "sandboxes are not asked for ahead of their trials"
    assert "needs a pod that the operator made" in told["reason"]


async def test_a_caller_that_goes_away_takes_its_trial_along(fleet: TrialFleet, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    request = make_request(task, harness=WAITING)
    scratch = scratch_of(fleet)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0):
            await fleet.run(request)
    await eventually(lambda: not list(scratch.rglob("started")), what="the trial's folder to go")
    assert fleet.num_in_flight == 0


async def test_a_host_that_dies_fails_its_trials_and_is_replaced(fleet: TrialFleet, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    scratch = scratch_of(fleet)
    async with asyncio.TaskGroup() as group:
        trials = [
            group.create_task(fleet.run(make_request(task, trial_id=str(number), harness=WAITING)))
            for number in range(4)
        ]
        await eventually(lambda: len(list(scratch.rglob("started"))) == 4, what="all agents to begin")
        killed, spared = fleet._members
        lost = set(killed.trial_ids)
        ray.kill(killed.actor)
        await eventually(lambda: fleet.num_in_flight == 2, what="the trials of the dead host to be given up")
        assert spared in fleet._members
        assert killed not in fleet._members
        again = await fleet.run(make_request(task, trial_id="again", mode=TrialMode.ORACLE))
        for trial in trials:
            trial.cancel()
    ended = {trial.result().trial_id: trial.result() for trial in trials if not trial.cancelled()}
    assert again.reward == 1.0
    assert set(ended) == lost
    assert {trajectory.outcome for trajectory in ended.values()} == {Outcome.HARNESS_FAILED}
    assert all("trial host died" in trajectory.detail for trajectory in ended.values())
    assert all(trajectory.reward is None for trajectory in ended.values())


def scratch_of(fleet: TrialFleet) -> Path:
    scratch = fleet._config.scratch_dir
    assert scratch is not None
    return scratch
