"""An agent that others wrote in a sandbox pod on a real node, from an image volume of its own."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from hack.cluster import Cluster
from hack.cluster.images.harnesses import MINI_SWE_AGENT, harnesses_image
from hack.cluster.images.worlds import OFFICE, office_image
from seatrial_api.outcome import Outcome
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.runner import run_trial
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import engine_server, tool_call
from tests.sandbox_pods import HeldPod, SandboxPods, sandbox_pods
from tests.stand_in_broker import StandInBroker, stand_in_broker
from tests.trial_tasks import make_request, write_trial_task

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        not MINI_SWE_AGENT.exists(),
        reason="mini-swe-agent is not installed; it comes with python hack/install_harnesses.py .cache/harnesses",
    ),
]

TOKEN = "service-account-token"  # noqa: S105  a stand-in's
WORLD = "agents"
LINES = [
    tool_call("bash", command="ls -d /opt/seatrial-harnesses/*; touch /opt/seatrial-harnesses/x; command -v python3"),
    tool_call("bash", command="echo 42 > answer.txt"),
    tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
]


@pytest.fixture(scope="module")
def pods(node: Cluster) -> Iterator[SandboxPods]:
    with sandbox_pods(node, "agents-on-node", office_image(), harnesses_image()) as pods:
        pods.create(WORLD, OFFICE, harnesses=True)
        yield pods


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(pods: SandboxPods) -> AsyncIterator[StandInBroker]:
    async with stand_in_broker(lambda world, trial: HeldPod(pods, pods.ready(world, trial)), TOKEN) as broker:
        yield broker


async def test_mini_swe_agent_runs_from_its_volume_in_a_world_without_python(
    broker: StandInBroker, tmp_path: Path
) -> None:
    policy = write_model(FAMILIES["hermes"], tmp_path / "policy")
    task = write_trial_task(tmp_path / "task", servers=())

    async def speak(_: str, turn: int) -> str:
        return LINES[turn]

    (tmp_path / "trial").mkdir()
    async with engine_server(policy, speak) as engine:
        request = make_request(task, harness="mini-swe-agent", model_path=policy, engines=[engine.address])
        sandbox, model = SandboxSpec(provider="kubernetes", world=WORLD), Policy(policy, 100_000, "hermes")
        with broker.told(tmp_path):
            trajectory = await run_trial(replace(request, sandbox=sandbox, policy=model), tmp_path / "trial")
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert verify(trajectory, ChatTemplate.load(policy)) == []
    looked = trajectory.turns[0].tool_calls[0].result
    assert "/opt/seatrial-harnesses/mini-swe-agent" in looked
    assert "Read-only file system" in looked
    assert "/python3" not in looked
