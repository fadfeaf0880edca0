"""Trials of the provider `kubernetes`, from host to sandbox: real processes, a real daemon, a stand-in broker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from seatrial_api.errors import InvalidInputError
from seatrial_api.finding import FindingKind
from seatrial_api.inspection_request import InspectionRequest
from seatrial_api.outcome import Outcome
from seatrial_api.protos import broker_pb2 as pb
from seatrial_api.sandboxes import BROKER_VARIABLE
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.world_image import Inspection, InspectionResult
from seatrial_rollout.environment.isolation import Means
from seatrial_rollout.inspection.__main__ import carry_out
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_rollout.trials.spawn import HostConfig
from tests.engine_server import engine_server, tool_call
from tests.sandbox_daemons import means, no_isolation
from tests.stand_in_broker import StandInBroker, daemons, stand_in_broker
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())

SANDBOX = SandboxSpec(provider="kubernetes", world="office")
TOKEN = "service-account-token"  # noqa: S105  a stand-in's


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[StandInBroker]:
    async with stand_in_broker(daemons("filesystem", "code"), TOKEN) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(broker: StandInBroker, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TrialHost]:
    """As in a pod that the operator made."""
    with broker.told(tmp_path_factory.mktemp("token")):
        async with trial_host(HostConfig(sandbox=SANDBOX, num_trials=24, grace_seconds=15.0)) as host:
            assert await host.start() == "kubernetes, pods of world office"
            assert broker.announced == pb.PrefetchRequest(world="office", run="run", count=24)
            yield host


@pytest.mark.asyncio(loop_scope="module")
async def test_a_host_passes_on_which_trials_come_next(host: TrialHost, broker: StandInBroker) -> None:
    await host.expect({"office": 6, "shop": 0})
    assert broker.announced == pb.PrefetchRequest(world="shop", run="run", count=0)


def request_of(task: Path, mode: TrialMode, world: str | None = "office", **limits: float) -> TrialRequest:
    sandbox = SandboxSpec(provider="kubernetes", world=world)
    return replace(make_request(task, mode=mode, trial_id="step-1-t00-a1", **limits), sandbox=sandbox)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("mode", "reward"), [(TrialMode.ORACLE, 1.0), (TrialMode.NO_OP, 0.0)])
async def test_a_trial_is_graded_in_a_sandbox_that_was_claimed_for_it_and_given_back(
    host: TrialHost, broker: StandInBroker, tmp_path: Path, mode: TrialMode, reward: float
) -> None:
    trajectory = await host.run(request_of(write_trial_task(tmp_path / "task"), mode))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, reward), trajectory.detail
    assert trajectory.world == "office"
    claim = broker.claims[-1]
    assert (claim.world, claim.run) == ("office", "run")
    assert claim.trial.startswith("step-1-t00-a1-")
    assert broker.held == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_task_may_name_its_own_world(host: TrialHost, broker: StandInBroker, tmp_path: Path) -> None:
    own = write_trial_task(tmp_path / "task", config='[metadata]\nworld = "office"')
    assert (await host.run(request_of(own, TrialMode.NO_OP, "elsewhere"))).outcome is Outcome.COMPLETED
    other = write_trial_task(tmp_path / "other")
    trajectory = await host.run(request_of(other, TrialMode.NO_OP, "elsewhere"))
    assert trajectory.outcome is Outcome.SANDBOX_FAILED
    assert "World: there is no WorldImage elsewhere" in trajectory.detail
    assert broker.held == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_sandbox_that_dies_makes_the_trial_say_what_the_broker_says(
    host: TrialHost, broker: StandInBroker, tmp_path: Path
) -> None:
    slow = write_trial_task(tmp_path / "task", files={"solution/solve.sh": "#!/bin/sh\nsleep 600\n"})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run(request_of(slow, TrialMode.ORACLE)))
        await broker.kill(
            await broker.holder(), pb.Failure(kind=pb.FAILURE_KIND_OUT_OF_MEMORY, message="it used more than 2Gi")
        )
    trajectory = running.result()
    assert trajectory.outcome is Outcome.SANDBOX_FAILED, trajectory.detail
    assert "OutOfMemory: it used more than 2Gi" in trajectory.detail
    assert broker.held == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_so_does_one_that_dies_before_the_trial_reaches_it(
    host: TrialHost, broker: StandInBroker, tmp_path: Path
) -> None:
    broker.kills_next = pb.Failure(kind=pb.FAILURE_KIND_EVICTED, message="its node is short of memory")
    trajectory = await host.run(request_of(write_trial_task(tmp_path / "task"), TrialMode.ORACLE))
    assert trajectory.outcome is Outcome.SANDBOX_FAILED, trajectory.detail
    assert "Evicted: its node is short of memory" in trajectory.detail
    assert broker.held == {}


@pytest.mark.asyncio(loop_scope="module")
async def test_an_agent_goes_on_in_another_sandbox_when_the_broker_loses_its_own(
    host: TrialHost, broker: StandInBroker, policy: Path, tmp_path: Path
) -> None:
    first = len(broker.claims)

    async def work(_: str, turn: int) -> str:
        if turn == 2:
            (trial,) = broker.held
            await broker.kill(trial, pb.Failure(kind=pb.FAILURE_KIND_NODE_LOST, message="its node is gone"))
        call = "echo 4 >> log; wc -l < log" if turn < 3 else "echo 42 > answer.txt; cat log"
        return tool_call("code_code_exec", code=call) if turn < 4 else "Done."

    async with engine_server(policy, work) as engine:
        request = make_request(
            write_trial_task(tmp_path / "task"), trial_id="lost", model_path=policy, engines=[engine.address]
        )
        trajectory = await host.run(replace(request, sandbox=SANDBOX))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail
    assert [call.result for turn in trajectory.turns for call in turn.tool_calls] == ["1", "2", "3", "4\n4\n4"]
    assert (trajectory.num_restores, trajectory.findings) == (1, [])
    assert len(broker.claims) == first + 2
    assert broker.claims[-1].trial == broker.claims[-2].trial
    assert broker.held == {}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("provider", ["kubernetes", "local"])
async def test_what_the_audit_found_is_kept_with_the_trial(host: TrialHost, tmp_path: Path, provider: str) -> None:
    plants = "mkdir -p /tests && echo exit 0 > /tests/helper.sh" if provider == "kubernetes" else "true"
    solution = f"#!/bin/sh\n{plants}\n(setsid sleep 600 &)\nprintf ghp_%036d 0 > keys.txt\necho 42 > answer.txt\n"
    task = write_trial_task(tmp_path / "task", files={"solution/solve.sh": solution})
    sandbox = SANDBOX if provider == "kubernetes" else SandboxSpec(provider=provider)
    innocent = await host.run(replace(make_request(task, mode=TrialMode.NO_OP), sandbox=sandbox))
    assert (innocent.outcome, innocent.findings) == (Outcome.COMPLETED, [])
    trajectory = await host.run(replace(make_request(task, mode=TrialMode.ORACLE), sandbox=sandbox))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail
    found = {finding.kind: finding for finding in trajectory.findings}
    assert found[FindingKind.LEFT_RUNNING].detail.startswith("1 processes of the agent were still there")
    assert found[FindingKind.SECRET].path == "/workspace/keys.txt"
    if provider == "kubernetes":  # a local sandbox has no such place before verification
        assert found[FindingKind.TAMPERING].path == "/tests/helper.sh"
    assert "/workspace/notes.txt" not in {finding.path for finding in trajectory.findings}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_trial_that_is_stopped_gives_its_sandbox_back(
    host: TrialHost, broker: StandInBroker, tmp_path: Path
) -> None:
    slow = write_trial_task(tmp_path / "task", files={"solution/solve.sh": "#!/bin/sh\nsleep 600\n"})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run(request_of(slow, TrialMode.ORACLE)))
        await broker.holder()
        await host.cancel("step-1-t00-a1")
    assert running.result().outcome is Outcome.CANCELLED
    assert broker.held == {}


async def test_a_pod_that_was_told_of_no_broker_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BROKER_VARIABLE, raising=False)
    async with trial_host(HostConfig(sandbox=SANDBOX)) as host:
        with pytest.raises(InvalidInputError, match="needs a pod that the operator made"):
            await host.start()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_world_is_inspected_in_sandboxes_of_its_own(
    host: TrialHost, broker: StandInBroker, tmp_path: Path
) -> None:
    write_trial_task(tmp_path / "tasks" / "sound")
    inspection = {"tasks": {"source": {"path": "tasks"}}, "repeats": 1}
    request = InspectionRequest(
        world="office",
        inspection=Inspection.model_validate(inspection),
        trials=4,
        base_dir=tmp_path,
        report_dir=tmp_path / "report",
        result_file=tmp_path / "last-word",
    )
    num_claims = len(broker.claims)
    await carry_out(request)
    result = InspectionResult.model_validate_json(request.result_file.read_text())
    assert (result.passed, result.tasks, result.faults) == (True, 1, {}), result.first
    assert len(broker.claims) - num_claims == result.trials == 11
    assert "Nothing was found." in (tmp_path / "report" / "inspection.md").read_text()
    assert broker.held == {}
