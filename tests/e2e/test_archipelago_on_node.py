"""A task in Archipelago's delivery layout on a real node: from the world's image and its gateway to the reward."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.cluster import Cluster
from hack.cluster.images.worlds import DELIVERED, DELIVERED_PORT, DELIVERED_TASK, delivered_image
from seatrial_api.outcome import Outcome
from seatrial_api.sandboxes import GATEWAY_SERVER
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_rollout.trials.tasks import TaskRef, load_task_set
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import engine_server, tool_call
from tests.sandbox_pods import HeldPod, SandboxPods, sandbox_pods
from tests.stand_in_broker import StandInBroker, stand_in_broker
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

TOKEN = "service-account-token"  # noqa: S105  a stand-in's
WORLD = "retail-world-7"
SAYS = [
    tool_call("files_server_read_file", path="rent.txt"),
    tool_call("files_server_write_file", path="review.txt", text="It rises by 100."),
    "Done.",
]
GRADE = """\
import json
from pathlib import Path
from runner.main import changes, evaluate

verifiers = json.loads(Path("/tests/verifiers.json").read_text())
changed = changes(Path("/tests/initial"), Path("/filesystem"))
scores = [evaluate(one["verifier_values"], changed) for one in verifiers]
Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": sum(scores) / len(scores)}))
"""
RUNNER = """\
def texts(folder):
    return {file.name: file.read_text() for file in folder.iterdir()}


def changes(before, after):
    former = texts(before)
    return {name: text for name, text in texts(after).items() if text != former.get(name)}


def evaluate(values, changed):
    return float(list(changed) == [values["file"]] and values["says"] in changed[values["file"]])
"""
FILES = {
    "instruction.md": "By how much does the rent rise? Answer in review.txt.",
    "task.toml": 'schema_version = "1.4"\n',
    "archipelago.json": json.dumps(
        {"task_slug": DELIVERED_TASK, "world_id": "w7", "world_short_name": WORLD, "needs_snapshot": True}
    ),
    "tests/test.sh": "#!/bin/sh\ncd /tests && exec python3 grade.py\n",
    "tests/grade.py": GRADE,
    "tests/runner/main.py": RUNNER,
    "tests/golden_responses.json": "{}",
    "tests/verifiers.json": json.dumps(
        [
            {"verifier_id": "rise", "verifier_values": {"file": "review.txt", "says": "rises by 100"}},
            {"verifier_id": "sentence", "verifier_values": {"file": "review.txt", "says": "."}},
        ]
    ),
}
MCP = {"kind": "Archipelago", "port": DELIVERED_PORT, "command": ["/app/tools/start.sh", "{task}"]}


@pytest.fixture(scope="module")
def pods(node: Cluster) -> Iterator[SandboxPods]:
    with sandbox_pods(node, "archipelago-on-node", delivered_image()) as pods:
        pods.create(WORLD, DELIVERED, twins=[f"{WORLD}-twin"], mcp=MCP, workdir="/filesystem")
        yield pods


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(pods: SandboxPods) -> AsyncIterator[StandInBroker]:
    names = [WORLD, f"{WORLD}-twin"]

    def give(world: str, trial: str) -> HeldPod | None:
        return HeldPod(pods, pods.ready(names.pop(), trial)) if world == WORLD and names else None

    async with stand_in_broker(give, TOKEN) as broker:
        yield broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(broker: StandInBroker, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TrialHost]:
    """As in a pod that the operator made."""
    with broker.told(tmp_path_factory.mktemp("token")):
        async with trial_host(HostConfig(sandbox=SandboxSpec(provider="kubernetes", world=WORLD))) as host:
            await host.start()
            yield host


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskRef:
    """The task, found as a run finds it."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, content in FILES.items():
        (folder / "rent-review" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "rent-review" / name).write_text(content)
    tasks = TaskSet.model_validate({"source": {"path": str(folder)}})
    (task,) = load_task_set(tasks, folder, folder / "cache")
    return task


async def run(host: TrialHost, task: TaskRef, **request: Any) -> Trajectory:
    """A trial in a sandbox of the task's own world."""
    made = make_request(task.path, trial_id=str(request.get("mode", "agent")).lower(), **request)
    trajectory = await host.run(replace(made, sandbox=SandboxSpec(provider="kubernetes", world="another")))
    assert (trajectory.outcome, trajectory.world) == (Outcome.COMPLETED, WORLD), (trajectory.detail, trajectory.turns)
    return trajectory


async def test_an_agent_solves_it_by_the_gateway_s_tools_and_is_graded_by_its_own_grader(
    host: TrialHost, task: TaskRef, tmp_path: Path
) -> None:
    async def speak(_trial: str, turn: int) -> str:
        return SAYS[turn]

    policy = write_model(FAMILIES["hermes"], tmp_path)
    async with engine_server(policy, speak) as engine:
        trajectory = await run(host, task, model_path=policy, engines=[engine.address])
    (read, written) = (call for turn in trajectory.turns for call in turn.tool_calls)
    assert read.server == GATEWAY_SERVER
    assert "next year 1300" in read.result
    assert not written.is_error
    assert trajectory.reward == 1.0


async def test_whoever_does_nothing_gets_nothing(host: TrialHost, task: TaskRef) -> None:
    assert (await run(host, task, mode=TrialMode.NO_OP)).reward == 0.0
