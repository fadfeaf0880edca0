"""Trials whose process dies in the middle: they go on in another one, with the tokens that were sampled."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.host import TrialHost
from tests.engine_server import EngineServer, engine_server, tool_call
from tests.leftovers import processes_using
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOK = tool_call("filesystem_list_files")
WRITE = tool_call("filesystem_write_text_file", path="answer.txt", text="42")


def kill_trial(host: TrialHost) -> None:
    """End the trial's process, as the kernel does when memory runs out."""
    zygote = min(processes_using(host.root), key=lambda pid: Path(f"/proc/{pid}").stat().st_ctime_ns)
    (trial,) = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    os.kill(int(trial), signal.SIGKILL)


async def tried(
    host: TrialHost, policy: Path, folder: Path, lines: list[str], dies_at: Callable[[int], bool]
) -> tuple[Trajectory, EngineServer]:
    """A trial whose process dies while the engine works on some turns; each death is followed by new weights."""

    async def speak(_: str, number: int) -> str:
        if dies_at(number):
            engine.weight_version += 1
            kill_trial(host)
            await asyncio.Event().wait()
        return lines[number]

    task = write_trial_task(folder / "task")
    async with engine_server(policy, speak) as engine:
        trajectory = await host.run(make_request(task, model_path=policy, engines=[engine.address]))
    return trajectory, engine


async def test_a_trial_goes_on_with_the_tokens_that_were_sampled_before_its_process_died(
    host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    lines = [LOOK, WRITE, "lost", "Done."]
    trajectory, engine = await tried(host, policy, tmp_path, lines, lambda number: number == 2)
    assert (trajectory.outcome, trajectory.reward, trajectory.num_resumptions) == (Outcome.COMPLETED, 1.0, 1)
    assert engine.turns.total() == len(lines)  # the first two were asked for once
    assert verify(trajectory, ChatTemplate.load(policy)) == []
    (sequence,) = trajectory.sequences
    versions = [{*sequence.weight_versions[turn.start : turn.stop]} for turn in trajectory.turns]
    assert versions == [{7}, {7}, {8}]
    assert [entry.name for entry in host.root.iterdir()] == ["zygote.log"]


async def test_a_trial_that_gets_no_further_than_before_is_given_up(
    host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    lines = [LOOK, "lost", "lost"]
    trajectory, engine = await tried(host, policy, tmp_path, lines, lambda number: number > 0)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.HARNESS_FAILED, None)
    assert "was ended by SIGKILL before it answered" in trajectory.detail
    assert engine.turns.total() == len(lines)
