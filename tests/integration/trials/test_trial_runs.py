"""Whole trials: real Harbor, real sandboxes, tools and verifiers; only the engine follows a script."""

import asyncio
from pathlib import Path

import pytest

from seatrial_api.finding import FindingKind
from seatrial_api.outcome import Outcome
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode
from tests.engine_server import LOGPROB, WEIGHT_VERSION, engine_server, tool_call
from tests.leftovers import mapped_files, processes_using
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORK_LEFT_RUNNING = """\
#!/bin/sh
echo 42 > /logs/artifacts/answer.txt
(while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.05; done) >/dev/null 2>&1 </dev/null &
"""
VERIFIER_ELSEWHERE = """\
#!/bin/sh
if [ "$(cat /logs/artifacts/answer.txt)" = 42 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


async def solve(_: str, turn: int) -> str:
    """Look around, write the answer, say so."""
    return [
        tool_call("filesystem_list_files"),
        tool_call("filesystem_write_text_file", path="answer.txt", text="42"),
        "Done.",
    ][turn]


async def fail(_: str, turn: int) -> str:
    return [tool_call("filesystem_write_text_file", path="answer.txt", text="41"), "Done."][turn]


async def test_a_solved_task_gives_a_verified_token_exact_trajectory(
    host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    task = write_trial_task(tmp_path / "task")
    async with engine_server(policy, solve) as engine:
        trajectory = await host.run(make_request(task, model_path=policy, engines=[engine.address]))
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert trajectory.scores == {"reward": 1.0, "checked": 1.0}
    assert verify(trajectory, ChatTemplate.load(policy)) == []
    assert [call.tool for turn in trajectory.turns for call in turn.tool_calls] == ["list_files", "write_text_file"]
    assert "notes.txt" in trajectory.turns[0].tool_calls[0].result
    assert (trajectory.num_failed_tool_calls, trajectory.findings) == (0, [])
    (sequence,) = trajectory.sequences
    sampled = [index for index, mask in enumerate(sequence.loss_mask) if mask]
    assert {sequence.logprobs[index] for index in sampled} == {LOGPROB}
    assert {sequence.weight_versions[index] for index in sampled} == {WEIGHT_VERSION}
    assert set(trajectory.phase_seconds) == {"sandbox", "agent", "verify"}
    assert 0 < sum(trajectory.phase_seconds.values()) < trajectory.wall_seconds
    assert 0 < trajectory.charged_seconds <= trajectory.phase_seconds["agent"]


async def test_a_task_that_is_not_solved_is_graded_too(host: TrialHost, policy: Path, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    async with engine_server(policy, fail) as engine:
        trajectory = await host.run(make_request(task, model_path=policy, engines=[engine.address]))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 0.0)


@pytest.mark.parametrize(("mode", "reward"), [(TrialMode.ORACLE, 1.0), (TrialMode.NO_OP, 0.0)])
async def test_the_oracle_scores_one_and_the_no_op_zero(
    host: TrialHost, tmp_path: Path, mode: TrialMode, reward: float
) -> None:
    trajectory = await host.run(make_request(write_trial_task(tmp_path / "task"), mode=mode))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, reward)
    assert (trajectory.harness, trajectory.sequences) == (mode.value, [])


async def test_trials_run_side_by_side_and_each_keeps_its_own_world(
    host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    async def by_number(trial_id: str, turn: int) -> str:
        return await (solve if int(trial_id) % 2 else fail)(trial_id, turn)

    task = write_trial_task(tmp_path / "task")
    async with engine_server(policy, by_number) as engine, asyncio.TaskGroup() as group:
        requests = [
            make_request(task, trial_id=str(number), model_path=policy, engines=[engine.address])
            for number in range(12)
        ]
        tasks = [group.create_task(host.run(request)) for request in requests]
    assert [task.result().trial_id for task in tasks] == [str(number) for number in range(12)]
    assert [len(task.result().turns) for task in tasks] == [2, 3] * 6
    assert [task.result().reward for task in tasks] == [0.0, 1.0] * 6


async def test_steps_and_charged_time_that_are_spent_end_a_trial_that_is_still_graded(
    host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    async def never_end(trial_id: str, turn: int) -> str:
        if turn == 0:
            return tool_call("filesystem_write_text_file", path="answer.txt", text="42")
        return tool_call("code_code_exec", code="sleep 30" if trial_id == "slow" else "true")

    task = write_trial_task(tmp_path / "task")
    async with engine_server(policy, never_end) as engine:
        known = {"model_path": policy, "engines": [engine.address]}
        steps = await host.run(make_request(task, trial_id="busy", **known))
        time = await host.run(make_request(task, trial_id="slow", agent_timeout_seconds=0.5, **known))
    assert (steps.outcome, steps.reward, len(steps.turns)) == (Outcome.STEPS_EXHAUSTED, 1.0, 8)
    assert (time.outcome, time.reward, len(time.turns)) == (Outcome.TIME_EXHAUSTED, 1.0, 2)


async def test_what_an_agent_planted_or_left_running_does_not_reach_the_verdict(
    host: TrialHost, tmp_path: Path
) -> None:
    task = write_trial_task(tmp_path / "task", verifier="#!/bin/sh\ncat /logs/verifier/reward.txt 2>&1; ls /tests\n")
    request = make_request(task, harness="tests.odd_harnesses:LeavingThingsBehind")
    trajectory = await host.run(request)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.VERIFIER_FAILED, None)
    assert "No such file" in trajectory.detail


async def test_a_finished_trial_leaves_no_folder_and_no_process(host: TrialHost, tmp_path: Path) -> None:
    await host.run(make_request(write_trial_task(tmp_path / "task"), mode=TrialMode.NO_OP))
    assert [entry.name for entry in host.root.iterdir()] == ["zygote.log"]
    assert (host.root / "zygote.log").read_text() == ""
    assert len(processes_using(host.root)) == 1


async def test_the_verifiers_own_timeout_beats_the_harness_limit(host: TrialHost, tmp_path: Path) -> None:
    task = write_trial_task(
        tmp_path / "task",
        verifier="#!/bin/sh\nsleep 1\necho 1 > /logs/verifier/reward.txt\n",
        config="[verifier]\ntimeout_sec = 20.0\n",
    )
    trajectory = await host.run(make_request(task, mode=TrialMode.NO_OP, verifier_timeout_seconds=0.1))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0)


async def test_a_trial_process_finds_everything_loaded(host: TrialHost, policy: Path, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    async with engine_server(policy, solve) as engine:
        harness = "tests.odd_harnesses:CountingImports"
        trajectory = await host.run(make_request(task, harness=harness, model_path=policy, engines=[engine.address]))
    assert trajectory.detail == ""
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0)


async def test_the_zygote_is_light(host: TrialHost) -> None:
    (zygote,) = processes_using(host.root)
    maps = mapped_files(zygote)
    assert "site-packages" in maps
    assert [name for name in ("torch", "vllm", "ray/_raylet", "numpy", "pyarrow") if f"/{name}" in maps] == []


async def test_what_an_agent_did_is_found_also_where_its_verifier_does_not_look(
    host: TrialHost, tmp_path: Path
) -> None:
    task = write_trial_task(
        tmp_path / "task",
        verifier=VERIFIER_ELSEWHERE,
        config='[verifier]\nenvironment_mode = "separate"\n',
        files={"solution/solve.sh": WORK_LEFT_RUNNING},
    )
    trajectory = await host.run(make_request(task, mode=TrialMode.ORACLE))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail
    assert FindingKind.LEFT_RUNNING in {finding.kind for finding in trajectory.findings}
