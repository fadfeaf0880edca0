"""The driver in a Ray cluster that somebody else started, watched and steered over HTTP as the operator does."""

import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from seatrial_api.driver_request import LiveSettings
from seatrial_api.playbook import ExitCode
from seatrial_api.spec.operations import GuardsSpec
from seatrial_api.stage_report import StageResult
from seatrial_trainer.storage.run_storage import RunStorage
from tests.e2e.local_run import write_manifest
from tests.e2e.ray_pods import ClusterRun, RayPods

pytestmark = pytest.mark.timeout(1800)

STAGES = ["preflight", "train"]
PODS = {"rollout": 2, "train": 1, "agents": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRun]:
    """A cluster that lacks one pod for rollouts, and no driver yet."""
    base_dir = tmp_path_factory.mktemp("storage")
    manifest = write_manifest(
        base_dir,
        stages=[
            {"name": "preflight", "preflight": {"tasks": 4, "varianceTasks": 1, "maxVarianceTries": 1}},
            {"name": "train", "train": {"steps": 3}},
        ],
        rollout={"engines": {"replicas": 2, "kvCacheGib": 0.25, "maxNumSeqs": 32, "startTimeoutSeconds": 300}},
        **{"async": {"maxStalenessSteps": 1, "weightSync": {"method": "gloo", "timeoutSeconds": 60}}},
    )
    with RayPods() as pods:
        for role in ("rollout", "train", "agents"):
            pods.add(role)
        cluster_run = ClusterRun(pods, manifest, base_dir, base_dir / "runs" / "quickstart-12345678")
        try:
            yield cluster_run
        finally:
            cluster_run.end()


def test_a_stop_is_honoured_while_pods_are_waited_for_and_while_engines_start(run: ClusterRun) -> None:
    driver = run.start(STAGES, PODS)
    run.wait_for(lambda progress: progress.activity == "waiting for pods to join: rollout (1 of 2 are there)")
    run.pods.add("rollout")
    run.wait_for(lambda progress: progress.activity == "starting engines and trial hosts")
    assert run.ask("POST", "/v1/stop").status_code == HTTPStatus.ACCEPTED
    asked = time.monotonic()
    progress = run.wait_for(lambda progress: progress.ended is not None)
    assert time.monotonic() - asked < 15, "an engine takes longer to start"
    assert progress.ended is ExitCode.INTERRUPTED
    assert progress.stages[0].result is StageResult.INTERRUPTED
    assert driver.wait(20) == ExitCode.INTERRUPTED, "it does not stay once it has told its end"
    assert [run.pods.actors(role) for role in PODS] == [[[], []], [[]], [[]]]


def test_the_next_attempt_runs_every_process_on_a_pod_of_its_role(run: ClusterRun) -> None:
    driver = run.start(STAGES, PODS)
    progress = run.wait_for(lambda progress: progress.stage == "train" and progress.step >= 1)
    assert run.pods.actors("rollout") == [["EngineActor"], ["EngineActor"]]
    assert run.pods.actors("train") == [["PolicyActor"]]
    assert run.pods.actors("agents") == [["TrialHost"]]
    assert progress.sandbox in {"local, isolated", "local, not isolated"}

    settings = LiveSettings(concurrency=3, guards=GuardsSpec(max_error_rate=None))
    answer = run.ask("PUT", "/v1/settings", content=settings.model_dump_json(by_alias=True))
    assert LiveSettings.model_validate_json(answer.content) == settings
    refused = run.ask("PUT", "/v1/settings", content=b'{"concurrency": 0, "guards": {}}')
    assert refused.status_code == HTTPStatus.BAD_REQUEST
    assert "concurrency" in refused.json()["error"]
    run.wait_for(lambda progress: progress.ceilings["live"] == 3)

    progress = run.wait_for(lambda progress: progress.ended is not None)
    assert (progress.ended, progress.message) == (ExitCode.PASSED, "")
    assert driver.wait(20) == 0
    preflight, train = progress.stages
    assert preflight.result is train.result is StageResult.PASSED
    assert train.message.startswith("3 steps")
    assert train.checkpoint is not None
    assert Path(train.checkpoint).is_relative_to(run.folder)


def test_what_actors_write_is_in_the_run_folder(run: ClusterRun) -> None:
    storage = RunStorage(run.folder)
    assert sorted(path.name for path in storage.logs.glob("*.log")) == ["engine-0.log", "engine-1.log"]
    assert {step["version"] for step in storage.stage("train").read_steps()} == {1, 2, 3}


def test_a_missed_end_is_told_again_from_the_reports_without_a_single_process(run: ClusterRun) -> None:
    driver = run.start(STAGES, PODS)
    progress = run.wait_for(lambda progress: progress.ended is not None)
    assert progress.ended is ExitCode.PASSED
    assert [stage.result for stage in progress.stages] == [StageResult.PASSED, StageResult.PASSED]
    assert progress.sandbox == "", "no trial host was started"
    assert driver.wait(20) == 0
