"""The office world: its tasks can be done with its tools, and their verifiers tell done from undone."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

OFFICE = Path(__file__).parents[3] / "examples" / "office"
sys.path.insert(0, str(OFFICE))  # its scripts import each other as a user runs them: from their own folder

from firm.facts import make_firm  # noqa: E402  found by the line above
from firm.files import world_files, write_world  # noqa: E402
from firm.harbor import SERVERS, expected, write_task  # noqa: E402
from firm.solve import Clerk  # noqa: E402
from firm.task import Task  # noqa: E402
from firm.verify import grade, holds  # noqa: E402
from firm.work import all_tasks  # noqa: E402

from seatrial_api.spec.data import TaskSet  # noqa: E402
from seatrial_api.spec.model import Source  # noqa: E402
from seatrial_rollout.trials.tasks import load_task_set  # noqa: E402

FIRM = make_firm()
WORLD = world_files(FIRM)
TASKS = {task.name: task for task in all_tasks(FIRM)}
CLERK = Clerk()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    write_world(FIRM, tmp_path / "workspace")
    return tmp_path / "workspace"


@pytest.mark.parametrize("name", sorted(TASKS))
async def test_the_tools_do_the_task_and_nothing_else_does(name: str, workspace: Path) -> None:
    task = TASKS[name]
    assert grade(workspace, expected(task, WORLD))["reward"] == 0.0
    assert [fact for fact in task.facts if holds(workspace, fact)] == []
    await CLERK.work(workspace, task.plan)
    assert grade(workspace, expected(task, WORLD)) == {"reward": 1.0, "facts": 1.0, "harmed": 0.0}


async def test_half_of_the_work_earns_half_and_harm_takes_all(workspace: Path) -> None:
    task = TASKS["finance-budget-slide-0"]
    await CLERK.work(workspace, task.plan[:-1])
    assert grade(workspace, expected(task, WORLD))["reward"] == 0.5
    (workspace / "README.txt").write_text("oops")
    assert grade(workspace, expected(task, WORLD)) == {"reward": 0.0, "facts": 0.5, "harmed": 1.0}


def test_tasks_need_several_servers_and_use_all_of_them() -> None:
    assert len(TASKS) >= 40
    assert all(len(task.servers) >= 2 for task in TASKS.values())
    used = Counter(server for task in TASKS.values() for server in task.servers)
    assert set(used) == set(SERVERS)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_an_answer_that_has_to_be_found_is_not_in_the_instruction(name: str) -> None:
    """At least one fact of a task asks for something that its instruction does not tell."""
    task = TASKS[name]
    wanted = [str(part) for fact in task.facts for part in fact.get("says", [])]
    wanted += [str(fact[key]) for fact in task.facts for key in ("value", "start", "rows") if key in fact]
    assert [part for part in wanted if part.lower() not in task.instruction.lower()]


def test_the_world_is_the_same_each_time() -> None:
    again = world_files(make_firm())
    assert {path: sha256(data).hexdigest() for path, data in again.items()} == {
        path: sha256(data).hexdigest() for path, data in WORLD.items()
    }


async def test_written_tasks_load_and_their_scripts_grade(tmp_path: Path) -> None:
    """Through the very files that Harbor runs, for one task."""
    task: Task = TASKS["finance-hours-report-0"]
    folder = tmp_path / "tasks" / task.name
    outcome = await CLERK.outcome(task, WORLD)
    assert outcome == await CLERK.outcome(task, WORLD)
    write_task(task, WORLD, outcome, folder)
    assert len(load_task_set(TaskSet(source=Source(path=str(tmp_path / "tasks"))), tmp_path, tmp_path)) == 1
    shutil.copytree(folder / "environment" / "files", tmp_path / "workspace")
    assert rewards_of(folder, tmp_path) == [0.0, 1.0]


def rewards_of(task: Path, root: Path) -> list[float]:
    """What the verifier says before and after the solution."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "WORKSPACE": str(root / "workspace"),
        "LOGS": str(root),
    }
    rewards = []
    for scripts in (["tests/test.sh"], ["solution/solve.sh", "tests/test.sh"]):
        for script in scripts:
            subprocess.run(["bash", task / script], env=environment, check=True, timeout=120, capture_output=True)
        rewards.append(json.loads((root / "reward.json").read_text())["reward"])
    return rewards
