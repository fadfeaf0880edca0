"""What `seatrial eval --harness` asks for, down to real trials of an agent that others wrote, and up to `results.json`.

The engines follow a script and stand without Ray; everything else is the product's.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, override

import pytest
import pytest_asyncio

from seatrial.evaluation import Question, evaluation_of
from seatrial_api.driver_request import DriverRequest
from seatrial_api.rlrun import RLRun
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.environment.isolation import HARNESSES_VARIABLE, Means
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_trainer.driver.inputs import load_inputs
from seatrial_trainer.driver.stages.evaluate import evaluate
from seatrial_trainer.driver.trials import TrialService
from seatrial_trainer.reporting.results import Results, write_results
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RESULTS_FILE, RunStorage
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import engine_server, tool_call
from tests.manifests import run_manifest
from tests.sandbox_daemons import means, no_isolation
from tests.training_doubles import NotedCluster, completes, make_context
from tests.trial_hosts import trial_host
from tests.trial_tasks import write_trial_task

FOLDER = Path(os.environ.get(HARNESSES_VARIABLE) or Path(__file__).parents[3] / ".cache" / "harnesses")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SCRIPTS = {
    "archipelago": [tool_call("filesystem_write_text_file", path="answer.txt", text="42"), "Done."],
    "mini-swe-agent": [tool_call("bash", command="echo 42 > answer.txt"), tool_call("bash", command=SUBMIT)],
}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation()),
    pytest.mark.skipif(
        not (FOLDER / "bin/mini-swe-agent").exists(),
        reason=f"mini-swe-agent is not installed; it comes with python hack/install_harnesses.py {FOLDER}",
    ),
]


@dataclass
class OneEngine:
    """A router with nothing to choose."""

    address: EngineAddress

    def assign(self, _trial_id: str) -> list[EngineAddress]:
        """The engine."""
        return [self.address]

    def release(self, _trial_id: str) -> None:
        """Nothing was counted."""


@dataclass
class RealTrials(NotedCluster):
    """Weights and engines are noted, trials are real."""

    service: TrialService | None = None
    trial_seconds: ClassVar[float] = 240.0

    @override
    async def rollout(self) -> Any:
        return SimpleNamespace(trials=self.service)

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        assert self.service is not None
        return await self.service.run(ticket)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents_host(config: HostConfig) -> AsyncIterator[TrialHost]:
    """A host whose sandboxes see the agents' programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HARNESSES_VARIABLE, str(FOLDER))
        async with trial_host(config) as host:
            await host.start()
            yield host


def evaluation(folder: Path) -> RLRun:
    """Of a model on one task, with two harnesses."""
    write_model(FAMILIES["hermes"], folder / "model")
    (folder / "model/config.json").write_text("{}")
    (folder / "model/model.safetensors").touch()
    write_trial_task(folder / "tasks/answer")
    prices = {"promptMillionTokens": 1.0, "completionMillionTokens": 10.0}
    manifest = run_manifest(
        spec__sandbox={"provider": "local"},
        spec__cost=prices,
        spec__model__contextLength={"train": 4096, "eval": 100_000},
    )
    run = RLRun.model_validate(manifest)
    return evaluation_of(run, run.spec.model.source, Question([f"held-out={folder}/tasks"], list(SCRIPTS)))


async def test_a_real_agent_is_evaluated_beside_ours_and_each_tells_what_it_cost(
    agents_host: TrialHost, tmp_path: Path
) -> None:
    async def speak(trial_id: str, turn: int) -> str:
        return SCRIPTS["mini-swe-agent" if "mini-swe-agent" in trial_id else "archipelago"][turn]

    run, storage, cluster = evaluation(tmp_path), RunStorage(tmp_path / "run"), RealTrials(completes)
    (stage,) = run.spec.stages
    assert stage.evaluate is not None
    inputs = load_inputs(run.spec, tmp_path)
    context = replace(make_context(run, stage.name, storage, cluster), inputs=inputs)
    async with engine_server(inputs.model_path, speak) as engine:
        router = OneEngine(engine.address)
        cluster.service = TrialService(run.spec, inputs, agents_host, router, context.telemetry)
        report = await evaluate(context, stage.evaluate)
    context.storage.write_report(report)
    request = DriverRequest(run=run, base_dir=tmp_path, stages=[stage.name])
    (storage.root / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
    write_results(storage.root)

    results = Results.model_validate_json((storage.root / RESULTS_FILE).read_bytes()).stages[stage.name]
    assert [(one.harness, one.pass_at_1.mean, one.behaviour["turns"]) for one in results] == [
        ("archipelago", 1.0, 2.0),
        ("mini-swe-agent", 1.0, 2.0),
    ]
    trajectories = {one.harness: one for one in storage.trajectories(stage.name)}
    for one in results:
        trajectory = trajectories[one.harness]
        assert verify(trajectory, ChatTemplate.load(inputs.model_path)) == []
        assert one.tokens is not None
        assert (one.tokens.trials, one.tokens.completion_tokens) == (1, trajectory.num_sampled)
        assert one.dollars == pytest.approx((one.tokens.prompt_tokens + 10 * one.tokens.completion_tokens) / 1e6)
