"""Processes that die, hang or are told to stop: the host tells how, and nothing stays."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import InvalidInputError
from seatrial_api.outcome import Outcome
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.spawn import HostConfig, ZygoteError
from tests.leftovers import eventually, processes_using
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def own_host(config: HostConfig) -> AsyncIterator[TrialHost]:
    """A host for tests that break it."""
    async with trial_host(config) as host:
        await host.start()
        yield host


def zygote_of(host: TrialHost) -> int:
    """The process that is the parent of the others."""
    named = [pid for pid in processes_using(host.root) if b"trials.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return min(named, key=lambda pid: Path(f"/proc/{pid}").stat().st_ctime_ns)


async def test_an_exception_in_the_harness_shows_its_traceback(host: TrialHost, tmp_path: Path) -> None:
    request = make_request(write_trial_task(tmp_path / "task"), harness="tests.odd_harnesses:Raising")
    trajectory = await host.run(request)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.HARNESS_FAILED, None)
    assert "KeyError: 'no such key'" in trajectory.detail
    assert "odd_harnesses.py" in trajectory.detail


@pytest.mark.parametrize(
    ("harness", "words"),
    [
        ("KillingItself", "was ended by SIGKILL before it answered; its output ends:\nabout to be killed"),
        ("Exiting", "exited with status 3 before it answered"),
    ],
)
async def test_a_trial_process_that_dies_is_told_with_its_last_words(
    host: TrialHost, tmp_path: Path, harness: str, words: str
) -> None:
    request = make_request(write_trial_task(tmp_path / "task"), harness=f"tests.odd_harnesses:{harness}")
    trajectory = await host.run(request)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.HARNESS_FAILED, None)
    assert words in trajectory.detail
    await eventually(lambda: len(processes_using(host.root)) == 1, what="the sandbox to end")


async def test_a_cancelled_trial_ends_at_once_and_cleans_up(host: TrialHost, tmp_path: Path) -> None:
    request = make_request(write_trial_task(tmp_path / "task"), harness="tests.odd_harnesses:Waiting")
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(host.run(request))
        await eventually(lambda: list(host.root.rglob("started")), what="the agent to begin")
        await host.cancel(request.trial_id)
        await host.cancel("no such trial")
    assert (trial.result().outcome, trial.result().reward) == (Outcome.CANCELLED, None)
    assert trial.result().detail == "the run stopped in the trial's agent phase"
    await eventually(lambda: len(processes_using(host.root)) == 1, what="the sandbox to end")


async def test_a_trial_that_is_deaf_to_its_cancellation_is_killed(host: TrialHost, tmp_path: Path) -> None:
    request = make_request(write_trial_task(tmp_path / "task"), harness="tests.odd_harnesses:Deaf")
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(host.run(request))
        await eventually(lambda: list(host.root.rglob("started")), what="the agent to begin")
        await host.cancel(request.trial_id)
    assert (trial.result().outcome, trial.result().reward) == (Outcome.CANCELLED, None)
    await eventually(lambda: len(processes_using(host.root)) == 1, what="the sandbox to end")


async def test_a_trial_that_is_deaf_to_its_deadline_is_killed(host: TrialHost, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    trajectory = await host.run(make_request(task, harness="tests.odd_harnesses:Deaf", wall_timeout_seconds=1.0))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.DEADLINE_EXCEEDED, None)
    assert "killed" in trajectory.detail


async def test_a_caller_that_goes_away_takes_its_trial_along(host: TrialHost, tmp_path: Path) -> None:
    request = make_request(write_trial_task(tmp_path / "task"), harness="tests.odd_harnesses:Deaf")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await host.run(request)
    await eventually(lambda: len(processes_using(host.root)) == 1, what="the trial to end")
    assert [entry.name for entry in host.root.iterdir()] == ["zygote.log"]


async def test_a_killed_zygote_fails_its_trials_and_the_next_one_runs(own_host: TrialHost, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    async with asyncio.TaskGroup() as group:
        request = make_request(task, harness="tests.odd_harnesses:Waiting")
        trial = group.create_task(own_host.run(request))
        await eventually(lambda: list(own_host.root.rglob("started")), what="the agent to begin")
        os.kill(zygote_of(own_host), signal.SIGKILL)
    assert (trial.result().outcome, trial.result().reward) == (Outcome.HARNESS_FAILED, None)
    assert "the zygote died" in trial.result().detail
    await eventually(lambda: not processes_using(own_host.root), what="the trial process to end")
    assert (await own_host.run(make_request(task, mode=TrialMode.ORACLE))).reward == 1.0


async def test_stopping_a_host_cancels_its_trials_and_refuses_others(config: HostConfig, tmp_path: Path) -> None:
    host = TrialHost(config)
    request = make_request(write_trial_task(tmp_path / "task"), harness="tests.odd_harnesses:Deaf")
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(host.run(request))
        await eventually(lambda: list(host.root.rglob("started")), what="the agent to begin")
        started = SYSTEM_CLOCK.now()
        await host.stop()
    assert trial.result().outcome is Outcome.CANCELLED
    assert SYSTEM_CLOCK.now() - started < 5
    assert (await host.run(request)).outcome is Outcome.CANCELLED
    await eventually(lambda: not processes_using(host.root), what="all processes to end")
    assert not host.root.exists()


async def test_a_zygote_that_cannot_load_says_why(config: HostConfig, tmp_path: Path) -> None:
    (tmp_path / "harbor").mkdir()
    (tmp_path / "harbor/__init__.py").write_text("raise ImportError('this is not harbor')")
    async with trial_host(HostConfig(env={"PYTHONPATH": str(tmp_path)})) as host:
        with pytest.raises(ZygoteError, match="this is not harbor"):
            await host.start()
        trajectory = await host.run(make_request(write_trial_task(tmp_path / "task"), mode=TrialMode.NO_OP))
    assert trajectory.outcome is Outcome.HARNESS_FAILED
    assert "this is not harbor" in trajectory.detail


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no.such:Agent", "Failed to import module 'no.such': No module named 'no'"),
        ("tests.odd_harnesses:Missing", "has no class 'Missing'"),
        ("json:JSONDecoder", "must subclass BaseAgent"),
    ],
)
async def test_a_harness_that_cannot_be_loaded_is_told_before_any_trial(
    config: HostConfig, name: str, problem: str
) -> None:
    own = ("archipelago", "tests.odd_harnesses:OddHarness", name)
    async with trial_host(replace(config, harnesses=own)) as host:
        with pytest.raises(InvalidInputError, match=f"^harness.name: {name} cannot be loaded .*{problem}"):
            await host.start()
