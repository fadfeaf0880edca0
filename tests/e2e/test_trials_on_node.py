"""Whole trials in sandbox pods on a real node, of every kind of world, and pods that are killed under them."""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import pytest_asyncio

from hack.cluster import Cluster
from hack.cluster.images.worlds import GATEWAY, GATEWAY_PORT, OFFICE, gateway_image, office_image
from seatrial_api.outcome import Outcome
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.spec.rollout import ReplaySpec, SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import engine_server, tool_call
from tests.sandbox_pods import HeldPod, SandboxPod, SandboxPods, sandbox_pods
from tests.stand_in_broker import StandInBroker, stand_in_broker
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request, write_trial_task

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

TOKEN = "service-account-token"  # noqa: S105  a stand-in's
PODS_PER_WORLD = 3
SIDECAR = {"name": "notes", "image": GATEWAY, "port": GATEWAY_PORT}
NOTES_VERIFIER = """\
#!/bin/sh
if [ "$(tail -n 1 notes.txt) $(wc -l < notes.txt)" = "note 3 5" ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


@dataclass(slots=True)
class Shelf:
    """Pods of each world that were made beforehand."""

    pods: SandboxPods
    names: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def give(self, world: str, trial: str) -> HeldPod | None:
        """The next pod of a world, once it is ready."""
        if not self.names[world]:
            return None
        return HeldPod(self.pods, self.pods.ready(self.names[world].pop(0), trial), WORLDS[world].kill)


def kill_daemon(_pods: SandboxPods, pod: SandboxPod) -> None:
    """As the kernel would for want of memory."""
    os.kill(pod.daemon_pid, signal.SIGKILL)


def take_notes(prefix: str) -> Sequence[str]:
    """What a policy says that has a server of notes."""

    def add(number: int) -> str:
        return tool_call(f"{prefix}add_note", text=f"note {number}")

    read = tool_call(f"{prefix}read_notes")
    return [add(0), add(1), read, add(2), add(3), read, "Done."]


def count_lines() -> Sequence[str]:
    """What a policy says that has a shell."""
    count = tool_call("code_code_exec", code="echo 4 >> log; wc -l < log")
    return [count, count, count, count, tool_call("code_code_exec", code="echo 42 > answer.txt; cat log"), "Done."]


@dataclass(frozen=True, slots=True)
class World:
    """What sandboxes there are, what a policy does in them, and how they end before their time."""

    image: str
    mcp: dict[str, object]
    says: Sequence[str]
    kill: Callable[[SandboxPods, SandboxPod], None]
    server: str = ""
    """The server that speaks HTTP; empty if ours do the work."""

    def write_task(self, folder: Path) -> Path:
        """A task that is solved by what the policy says."""
        if not self.server:
            return write_trial_task(folder)
        config = f'[[environment.mcp_servers]]\nname = "{self.server}"\ntransport = "streamable-http"\nurl = "http://x"'
        return write_trial_task(folder, servers=(), config=config, verifier=NOTES_VERIFIER)


WORLDS = {
    "runtime": World(OFFICE, {"servers": ["filesystem", "code"]}, count_lines(), kill_daemon),
    "sidecars": World(
        OFFICE, {"kind": "Sidecars", "sidecars": [SIDECAR]}, take_notes("notes_"), SandboxPods.delete_at_once, "notes"
    ),
    "gateway": World(
        GATEWAY,
        {"kind": "Archipelago", "port": GATEWAY_PORT},
        take_notes(""),
        SandboxPods.delete_at_once,
        "archipelago",
    ),
}


@pytest.fixture(scope="module")
def shelf(node: Cluster) -> Iterator[Shelf]:
    with sandbox_pods(node, "trials-on-node", office_image(), gateway_image()) as pods:
        shelf = Shelf(pods)
        for name, world in WORLDS.items():
            twins = [f"{name}-{number}" for number in range(1, PODS_PER_WORLD)]
            pods.create(name, world.image, twins=twins, mcp=world.mcp)
            shelf.names[name] = [name, *twins]
        pods.await_ready(*(name for names in shelf.names.values() for name in names))
        yield shelf


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(shelf: Shelf) -> AsyncIterator[StandInBroker]:
    async with stand_in_broker(shelf.give, TOKEN) as broker:
        yield broker


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(FAMILIES["hermes"], tmp_path_factory.mktemp("policy"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(
    broker: StandInBroker, policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TrialHost]:
    """As in a pod that the operator made."""
    config = HostConfig(policy, sandbox=SandboxSpec(provider="kubernetes", world="runtime"))
    with broker.told(tmp_path_factory.mktemp("token")):
        async with trial_host(config) as host:
            await host.start()
            yield host


@pytest.mark.parametrize("name", WORLDS)
async def test_a_trial_whose_pod_is_killed_says_what_it_says_without(
    host: TrialHost, broker: StandInBroker, policy: Path, tmp_path: Path, name: str
) -> None:
    world = WORLDS[name]
    task = world.write_task(tmp_path / "task")

    async def speak(trial: str, turn: int) -> str:
        if turn == 3 and trial.startswith("killed"):
            (held,) = (one for one in broker.held if one.startswith("killed"))
            await broker.kill(held, pb.Failure(kind=pb.FAILURE_KIND_DELETED, message="somebody deleted it"))
        return world.says[turn]

    async def run(trial: str) -> Trajectory:
        request = make_request(task, trial_id=trial, model_path=policy, engines=[engine.address])
        replay = ReplaySpec(snapshot_every_calls=2)  # so that the third call has to be made again
        return await host.run(replace(request, sandbox=SandboxSpec(provider="kubernetes", world=name, replay=replay)))

    async with engine_server(policy, speak) as engine, asyncio.TaskGroup() as trials:
        running = [trials.create_task(run(f"{kind}-{name}")) for kind in ("calm", "killed")]
        calm, killed = [await one for one in running]
    for trajectory, restores in ((calm, 0), (killed, 1)):
        assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), (
            trajectory.detail,
            trajectory.turns,
        )
        assert (trajectory.num_restores, trajectory.num_failed_tool_calls) == (restores, 0)
        assert (trajectory.world, trajectory.findings) == (name, [])
    assert killed.sequences == calm.sequences
    assert len(killed.turns) == len(world.says)
    assert killed.charged_seconds < killed.phase_seconds["agent"] - killed.restore_seconds + 0.1
    assert broker.held == {}
