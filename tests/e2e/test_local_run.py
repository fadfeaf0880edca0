import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seatrial_api import metrics as table
from seatrial_api.driver_request import DriverRequest
from seatrial_api.rlrun import RLRun
from seatrial_api.stage_report import StageResult
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from seatrial_trainer.policy.minibatch import build_minibatches
from seatrial_trainer.policy.schedule import learning_rate
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from seatrial_trainer.storage.run_storage import RunStorage
from tests.e2e.local_run import QUICKSTART, LocalRun, write_manifest

pytestmark = pytest.mark.timeout(2400)

STEPS = 4


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    """A run that is stopped while engines start, killed after a step, stopped after another, and left to finish."""
    manifest = write_manifest(
        tmp_path_factory.mktemp("run"),
        stages=[
            {"name": "preflight", "preflight": {"tasks": 8, "varianceTasks": 2, "maxVarianceTries": 8}},
            {"name": "overfit", "overfit": {"tasks": 2, "groupSize": 6, "steps": 3, "minRewardGain": -1}},
            {"name": "before", "evaluate": {"checkpoint": "Initial"}},
            {"name": "train", "train": {"steps": STEPS, "validateEverySteps": 2}},
            {"name": "after", "evaluate": {"checkpoint": "Best", "minGain": -1}},
        ],
    )
    run = LocalRun(manifest)
    try:
        stop_while_engines_start(run)
        kill_after_a_step(run)
        stop_after_another(run)
        code, output = run.finish(run.start("--resume"))
        assert code == 0, output
        assert "report.html" in output
        yield run
    finally:
        run.end()


def stop_while_engines_start(run: LocalRun) -> None:
    process = run.start()
    run.wait_for(process, lambda progress: progress.activity == "starting engines and trial hosts")
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, output = run.finish(process)
    assert time.monotonic() - pressed < 15, "an engine takes longer to start"
    assert code == 130, output
    assert RunStorage(run.folder).stage("preflight").group_ids() == []


def kill_after_a_step(run: LocalRun) -> None:
    process = run.start("--resume")
    run.wait_for(process, lambda progress: progress.stage == "train" and progress.step >= 1)
    (run.manifest.parent / "metrics.txt").write_text(scrape(run))
    assert run.kill_driver() == [], "a killed driver leaves nothing running"
    code, output = run.finish(process)
    assert code == 1, output


def stop_after_another(run: LocalRun) -> None:
    process = run.start("--resume")
    run.wait_for(process, lambda progress: progress.stage == "train" and progress.step >= 2)
    process.send_signal(signal.SIGINT)
    code, output = run.finish(process)
    assert code == 130, output
    assert "--resume" in output


def scrape(run: LocalRun) -> str:
    import urllib.request  # noqa: PLC0415

    address = json.loads((run.folder / "driver.json").read_text())["url"]
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:  # noqa: S310  our own server
        return str(answer.read().decode())


def request_of(run: LocalRun) -> DriverRequest:
    return DriverRequest.model_validate_json((run.folder / "run.json").read_bytes())


def test_every_stage_passes_after_all(interrupted_run: LocalRun) -> None:
    reports = list(RunStorage(interrupted_run.folder).reports())
    assert {report.stage: report.result for report in reports} == dict.fromkeys(
        ("preflight", "overfit", "before", "train", "after"), StageResult.PASSED
    )


def test_tokens_sampled_after_a_sync_in_flight_are_those_of_the_weights_that_came(interrupted_run: LocalRun) -> None:
    storage = RunStorage(interrupted_run.folder)
    (report,) = (report for report in storage.reports() if report.stage == "overfit")
    whole, in_flight, _ = report.gates
    for gate in (whole, in_flight):
        assert gate.value is not None, gate
        assert gate.value < 1e-4, gate
        assert gate.passed
    steps = storage.stage("overfit").read_steps()
    assert sum(step["in_flight_tokens"] for step in steps) > 0


def test_every_group_is_trained_once_within_its_bound(interrupted_run: LocalRun) -> None:
    stage = RunStorage(interrupted_run.folder).stage("train")
    manifests = stage.read_batches(0)
    assert [manifest.version for manifest in manifests] == list(range(STEPS))
    trained = [group_id for manifest in manifests for group_id in manifest.group_ids]
    assert len(trained) == len(set(trained)) == STEPS * 4
    bound = request_of(interrupted_run).run.spec.async_.max_staleness_steps
    for manifest in manifests:
        for group_id in manifest.group_ids:
            for trajectory in stage.read_group(group_id):
                assert trajectory.start_version <= manifest.version <= trajectory.start_version + bound


def test_the_logged_batches_make_the_same_weights_to_the_bit(interrupted_run: LocalRun) -> None:
    run: RLRun = request_of(interrupted_run).run
    stage = RunStorage(interrupted_run.folder).stage("train")
    torch.set_num_threads(1)
    replayed = TorchBackend(PolicySetup.from_run(run.spec), QUICKSTART / "policy")
    for manifest in stage.read_batches(0):
        groups = [stage.read_group(group_id) for group_id in manifest.group_ids]
        rate = learning_rate(manifest.version, STEPS, run.spec.algorithm.optimizer)
        for minibatch in build_minibatches(groups, run.spec.algorithm, run.spec.data.domains):
            replayed.forward_backward(minibatch)
            replayed.optim_step(rate)
    checkpoint = stage.checkpoints.latest()
    assert checkpoint is not None
    assert checkpoint.manifest.version == STEPS
    trained = TorchBackend(PolicySetup.from_run(run.spec), QUICKSTART / "policy")
    trained.load(checkpoint.policy)
    for (name, ours), (_, theirs) in zip(replayed.export_weights(), trained.export_weights(), strict=True):
        assert torch.equal(ours, theirs), name


def test_every_stored_trajectory_is_token_exact(interrupted_run: LocalRun) -> None:
    template = ChatTemplate.load(QUICKSTART / "policy")
    trajectories = list(RunStorage(interrupted_run.folder).trajectories())
    assert len(trajectories) > STEPS * 16
    for trajectory in trajectories:
        if trajectory.sequences:
            assert verify(trajectory, template) == [], trajectory.trial_id


def test_engine_and_trainer_agree_on_tokens_of_the_current_weights(interrupted_run: LocalRun) -> None:
    steps = RunStorage(interrupted_run.folder).stage("train").read_steps()
    fresh = [step["fresh_logprob_abs_diff_mean"] for step in steps if step["fresh_logprob_abs_diff_mean"] is not None]
    assert fresh
    assert max(fresh) < 1e-4


def test_a_running_driver_exports_the_metrics_of_the_table(interrupted_run: LocalRun) -> None:
    text = (interrupted_run.manifest.parent / "metrics.txt").read_text()
    exported = {family.name for family in text_string_to_metric_families(text)}
    counters = {metric.name.removesuffix("_total") for metric in table.METRICS}
    assert exported <= counters
    for metric in (table.TRIAL_OUTCOMES, table.TOOL_CALLS, table.REWARD, table.WEIGHT_SYNC_SECONDS, table.TOKENS):
        assert metric.name.removesuffix("_total") in exported


def test_tensorboard_holds_every_step(interrupted_run: LocalRun) -> None:
    events = EventAccumulator(str(interrupted_run.folder / "tensorboard"))
    events.Reload()
    assert {event.step for event in events.Tensors("train/reward_mean")} == set(range(1, STEPS + 1))


def test_the_run_cannot_go_on_under_another_model(interrupted_run: LocalRun) -> None:
    process = interrupted_run.start("--resume", "--set", "spec.algorithm.groupSize=8")
    code, output = interrupted_run.finish(process)
    assert code == 2, output
    assert "groupSize" in output


def test_a_finished_run_asked_for_again_is_answered_from_its_reports(interrupted_run: LocalRun) -> None:
    before = Path(interrupted_run.folder / "stages/train/steps.jsonl").read_bytes()
    code, output = interrupted_run.finish(interrupted_run.start("--resume"))
    assert code == 0, output
    assert Path(interrupted_run.folder / "stages/train/steps.jsonl").read_bytes() == before
