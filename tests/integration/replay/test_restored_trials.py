"""What becomes of single trials whose sandbox is killed: in a call, at the end, under a tool that answers by chance."""

from pathlib import Path

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.rollout import ReplaySpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.environment.isolation import Means
from tests.engine_server import tool_call
from tests.sandbox_daemons import means, no_isolation
from tests.storms import LOCAL, SANDBOXD, SERVERS, Kill, Storm
from tests.trial_tasks import VERIFIER, write_trial_task

pytestmark = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())
everywhere = pytest.mark.parametrize("provider", [LOCAL, SANDBOXD], ids=["local", "sandboxd"])


def shell(code: str) -> str:
    return tool_call("code_code_exec", code=code)


async def trial(storm: Storm, turns: list[str], *kills: Kill) -> Trajectory:
    """A trial of an agent that says one thing after the other, whose sandbox is killed."""
    done = await storm.run({"trial": [*turns, "Done."].__getitem__}, {"trial": kills})
    return done["trial"]


def answers(trajectory: Trajectory) -> list[str]:
    return [call.result for turn in trajectory.turns for call in turn.tool_calls]


@everywhere
async def test_a_call_that_was_under_way_takes_effect_once(policy: Path, task: Path, provider: str) -> None:
    slow = shell("echo x >> log; sleep 1.5; echo x >> log; wc -l < log")
    storm = Storm(provider, policy, task, ReplaySpec(snapshot_every_calls=2))
    trajectory = await trial(storm, [shell("echo a >> log; wc -l < log"), slow, shell("cat log")], Kill(1, 0.7))
    assert (trajectory.outcome, trajectory.num_restores) == (Outcome.COMPLETED, 1)
    assert answers(trajectory) == ["1", "3", "a\nx\nx"]
    assert trajectory.restore_seconds > 0
    assert trajectory.charged_seconds < trajectory.phase_seconds["agent"] - trajectory.restore_seconds + 0.1


@everywhere
async def test_a_sandbox_that_dies_before_the_answer_is_written_down_is_replaced(
    policy: Path, task: Path, provider: str
) -> None:
    storm = Storm(provider, policy, task, ReplaySpec(snapshot_every_calls=1))
    turns = [shell("echo 42 > answer.txt")]
    trajectory = await trial(storm, turns, Kill(0, 0.0), Kill(1, 0.0))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0)


@everywhere
async def test_work_whose_sandbox_dies_under_the_verifier_is_graded_in_another(
    tmp_path: Path, policy: Path, provider: str
) -> None:
    slow = VERIFIER.replace("if [", "touch /logs/verifier/grading; sleep 1.5\nif [", 1)
    task = write_trial_task(tmp_path / "graded", verifier=slow, servers=SERVERS)
    turns = [shell("sleep 600 >/dev/null 2>&1 & echo 4 > answer.txt"), shell("printf 42 > answer.txt")]
    storm = Storm(provider, policy, task, ReplaySpec(snapshot_every_calls=1))
    trajectory = await trial(storm, turns, Kill(2, after_file="grading"))
    assert (trajectory.outcome, trajectory.reward, trajectory.num_restores) == (Outcome.COMPLETED, 1.0, 1)


async def test_a_tool_that_answers_by_chance_is_a_divergence_and_is_not_graded(policy: Path, task: Path) -> None:
    turns = [shell("echo 42 > answer.txt"), shell("od -N8 -x /dev/urandom"), shell("cat answer.txt")]
    trajectory = await trial(Storm(LOCAL, policy, task, ReplaySpec(snapshot_every_calls=5)), turns, Kill(2))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.REPLAY_DIVERGED, None)
    assert "call 2, code_exec({'code': 'od -N8 -x /dev/urandom'}) of server code differs" in trajectory.detail
    assert answers(trajectory)[1][:20] in trajectory.detail
    assert len(trajectory.turns) == 3
    assert trajectory.num_restores == 1


async def test_a_tool_that_answers_by_chance_does_no_harm_behind_a_snapshot(policy: Path, task: Path) -> None:
    turns = [shell("od -N8 -x /dev/urandom | tee number"), shell("cat number"), shell("cat number")]
    trajectory = await trial(Storm(LOCAL, policy, task, ReplaySpec(snapshot_every_calls=1)), turns, Kill(2))
    assert (trajectory.outcome, trajectory.num_restores) == (Outcome.COMPLETED, 1)
    assert len(set(answers(trajectory))) == 1


async def test_times_of_the_trial_itself_are_no_divergence(policy: Path, task: Path) -> None:
    times = shell("echo made > made; sleep 1.1; ls -l --time-style=full-iso made; date; date +%FT%T.%N")
    turns = [times, tool_call("filesystem_file_info", path="made"), shell("cat made")]
    trajectory = await trial(Storm(LOCAL, policy, task, ReplaySpec(snapshot_every_calls=0)), turns, Kill(2))
    assert (trajectory.outcome, trajectory.num_restores, trajectory.detail) == (Outcome.COMPLETED, 1, "")


@everywhere
async def test_what_the_agent_left_running_runs_again(policy: Path, task: Path, provider: str) -> None:
    start = shell("cp $(command -v sleep) ./daemon; ./daemon 600 >/dev/null 2>&1 </dev/null & echo started")
    running = shell("cat /proc/[0-9]*/comm | grep -c daemon")
    turns = [shell("echo first > first"), start, running, running, shell("cat first")]
    trajectory = await trial(Storm(provider, policy, task, ReplaySpec(snapshot_every_calls=1)), turns, Kill(3))
    assert (trajectory.outcome, trajectory.num_restores) == (Outcome.COMPLETED, 1)
    assert answers(trajectory)[2:] == ["1", "1", "first"]


async def test_a_sandbox_that_may_not_be_replaced_ends_its_trial(policy: Path, task: Path) -> None:
    turns = [shell("echo x"), shell("echo y")]
    trajectory = await trial(Storm(LOCAL, policy, task, ReplaySpec(max_restores=0)), turns, Kill(1))
    assert (trajectory.outcome, trajectory.num_restores) == (Outcome.SANDBOX_FAILED, 0)


@everywhere
async def test_the_agents_notebook_survives_its_sandbox(policy: Path, task: Path, provider: str) -> None:
    storm = Storm(provider, policy, task, ReplaySpec(snapshot_every_calls=2), notebook=True)
    turns = [
        tool_call("notebook_write_todo", items=[{"task": "write it", "status": "doing"}]),
        shell("echo 42 > answer.txt"),
        tool_call("notebook_write_notes", text="it is 42"),
        shell("cat /logs/agent/notes.md"),
        tool_call("notebook_read"),
    ]
    trajectory = await trial(storm, turns, Kill(3))
    assert (trajectory.outcome, trajectory.reward, trajectory.num_restores) == (Outcome.COMPLETED, 1.0, 1)
    both = "Your todo list:\n- [~] write it\n\nYour notes:\nit is 42"
    assert answers(trajectory)[-2:] == ["it is 42", both]
