"""Every fault of a trial's surroundings is a named outcome without a reward, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.rollout import ReplaySpec, SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.spawn import HostConfig
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import engine_server, tool_call
from tests.leftovers import eventually, name_of, processes_using
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")


def told(trajectory: Trajectory) -> tuple[Outcome, float | None]:
    return trajectory.outcome, trajectory.reward


# Verifier


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo garbage > /logs/verifier/reward.json", "reward.json holds 'garbage"),
        ("echo '{\"reward\": NaN}' > /logs/verifier/reward.json", "reward is nan, which is not finite"),
        ("echo '{\"score\": 1}' > /logs/verifier/reward.json", "reward.json has no reward, only score"),
        ("echo ninety > /logs/verifier/reward.txt", "reward.txt holds 'ninety"),
        ("head -c 5000 /dev/urandom > /logs/verifier/reward.json", "which is no JSON"),
        ("mkdir /logs/verifier/reward.json", "no reward.json and no reward.txt"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "no reward.json and no reward.txt"),
        ("echo all is lost >&2; exit 3", "exited with status 3 and its output ends:\nall is lost"),
        ("true", "no reward.json and no reward.txt; tests/test.sh exited with status 0"),
        ("kill -9 $$", "no reward.json and no reward.txt; tests/test.sh exited with status"),
    ],
)
async def test_a_verifier_that_leaves_no_readable_reward_has_failed(
    host: TrialHost, tmp_path: Path, script: str, words: str
) -> None:
    task = write_trial_task(tmp_path / "task", verifier=f"#!/bin/sh\n{script}\n")
    trajectory = await host.run(make_request(task, mode=TrialMode.NO_OP))
    assert told(trajectory) == (Outcome.VERIFIER_FAILED, None)
    assert words in trajectory.detail


async def test_a_verifier_that_hangs_has_failed_and_is_killed(host: TrialHost, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task", verifier="#!/bin/sh\nsleep 1000 & sleep 1000\n")
    trajectory = await host.run(make_request(task, mode=TrialMode.NO_OP, verifier_timeout_seconds=0.5))
    assert told(trajectory) == (Outcome.VERIFIER_FAILED, None)
    assert "timed out after 0.5 seconds" in trajectory.detail
    await eventually(lambda: len(processes_using(host.root)) == 1, what="the verifier to end")


async def test_a_task_that_lost_its_verifier_is_refused_by_name(host: TrialHost, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    (task / "tests/test.sh").unlink()
    trajectory = await host.run(make_request(task, mode=TrialMode.ORACLE))
    assert told(trajectory) == (Outcome.HARNESS_FAILED, None)
    assert "tests/test.sh" in trajectory.detail


# Model and engine


async def test_a_tokenizer_without_chat_template_is_named(host: TrialHost, tmp_path: Path) -> None:
    bare = write_model(FAMILIES["hermes"], tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    task = write_trial_task(tmp_path / "task")
    trajectory = await host.run(make_request(task, model_path=bare))
    assert told(trajectory) == (Outcome.HARNESS_FAILED, None)
    assert "has no chat template" in trajectory.detail
    assert "Traceback" not in trajectory.detail


async def test_an_engine_that_dies_keeps_the_turns_before(host: TrialHost, policy: Path, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")

    async def die_at_the_second_turn(_: str, turn: int) -> str:
        if turn == 1:
            await dying.wait()
        return tool_call("filesystem_list_files")

    dying = asyncio.Event()
    async with engine_server(policy, die_at_the_second_turn) as engine, asyncio.TaskGroup() as group:
        request = make_request(task, model_path=policy, engines=[engine.address], engine_call_timeout_seconds=1.5)
        trial = group.create_task(host.run(request))
        await eventually(lambda: engine.turns["trial-0"] == 2, what="the second turn")
        await engine.stop()
    assert told(trial.result()) == (Outcome.ENGINE_FAILED, None)
    assert "no engine" in trial.result().detail
    assert len(trial.result().turns) == 1
    assert trial.result().num_sampled > 0


async def test_a_second_engine_takes_over_from_one_that_refuses(host: TrialHost, policy: Path, tmp_path: Path) -> None:
    async def end(_: str, __: int) -> str:
        return "Done."

    gone = EngineAddress("gone", "http://127.0.0.1:9", "secret")
    async with engine_server(policy, end) as engine:
        request = make_request(write_trial_task(tmp_path / "task"), model_path=policy, engines=[gone, engine.address])
        trajectory = await host.run(request)
    assert told(trajectory) == (Outcome.COMPLETED, 0.0)


async def test_the_wall_deadline_is_no_fault_of_the_model(host: TrialHost, policy: Path, tmp_path: Path) -> None:
    async def hang(_: str, __: int) -> str:
        await asyncio.Event().wait()
        return ""

    async with engine_server(policy, hang) as engine:
        task = write_trial_task(tmp_path / "task")
        request = make_request(task, model_path=policy, engines=[engine.address], wall_timeout_seconds=1.0)
        trajectory = await host.run(request)
    assert told(trajectory) == (Outcome.DEADLINE_EXCEEDED, None)
    assert trajectory.detail == "the wall deadline passed in the trial's agent phase"
    assert trajectory.sequences, "what was there is kept"


# Sandbox and tools


async def test_a_sandbox_killed_in_the_middle_of_a_call_is_blamed_where_none_may_take_its_place(
    host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    async def sleep(_: str, __: int) -> str:
        return tool_call("code_code_exec", code="touch started; sleep 1000")

    async with engine_server(policy, sleep) as engine, asyncio.TaskGroup() as group:
        task = write_trial_task(tmp_path / "task")
        request = make_request(task, model_path=policy, engines=[engine.address])
        for_good = SandboxSpec(provider="local", replay=ReplaySpec(max_restores=0))
        trial = group.create_task(host.run(replace(request, sandbox=for_good)))
        await eventually(lambda: list(host.root.rglob("started")), what="the call to begin")
        for pid in processes_using(host.root):
            if name_of(pid) == "bwrap":
                os.kill(pid, signal.SIGKILL)
    assert told(trial.result()) == (Outcome.SANDBOX_FAILED, None)
    assert len(trial.result().turns) == 1


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("sleep 1000", Outcome.TOOL_SERVER_FAILED),
        ("echo no protocol", Outcome.TOOL_SERVER_FAILED),
        ("no-such-server", Outcome.SANDBOX_FAILED),
    ],
)
async def test_a_tool_server_that_hangs_breaks_or_is_missing_is_blamed_by_name(
    host: TrialHost, policy: Path, tmp_path: Path, command: str, outcome: Outcome
) -> None:
    program, *arguments = command.split()
    config = (
        f'[[environment.mcp_servers]]\nname = "mail"\ntransport = "stdio"\ncommand = "{program}"\nargs = {arguments}\n'
    )
    task = write_trial_task(tmp_path / "task", config=config)
    trajectory = await host.run(make_request(task, model_path=policy, setup_timeout_seconds=1.0))
    assert told(trajectory) == (outcome, None)
    assert "mail" in trajectory.detail


async def test_a_tool_call_that_hangs_is_blamed_on_its_server(host: TrialHost, policy: Path, tmp_path: Path) -> None:
    async def sleep(_: str, __: int) -> str:
        return tool_call("code_code_exec", code="sleep 1000")

    async with engine_server(policy, sleep) as engine:
        task = write_trial_task(tmp_path / "task")
        request = make_request(task, model_path=policy, engines=[engine.address], tool_call_timeout_seconds=0.5)
        trajectory = await host.run(request)
    assert told(trajectory) == (Outcome.TOOL_SERVER_FAILED, None)
    assert "code" in trajectory.detail


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_a_full_disk_is_no_zero(config: HostConfig, small_disk: Path, tmp_path: Path) -> None:
    async with trial_host(replace(config, scratch_dir=small_disk)) as host:
        request = make_request(write_trial_task(tmp_path / "task"), harness="tests.odd_harnesses:FillingTheDisk")
        trajectory = await host.run(request)
        again = await host.run(make_request(write_trial_task(tmp_path / "task"), mode=TrialMode.ORACLE))
    assert trajectory.outcome.is_infrastructure
    assert trajectory.reward is None
    assert "disk is full" in trajectory.detail or "No space left" in trajectory.detail
    assert told(again) == (Outcome.COMPLETED, 1.0), "the room is given back"
