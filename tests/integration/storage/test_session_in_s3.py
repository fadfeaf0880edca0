"""A whole life of a driver whose run is kept in S3, without a stage that has to run."""

from pathlib import Path

import pytest

from seatrial_api.driver_request import DriverRequest
from seatrial_api.playbook import ExitCode
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.model import S3Source
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_trainer.driver.driver import fingerprint
from seatrial_trainer.driver.session import ServerSettings, drive
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage
from tests.manifests import run_manifest
from tests.object_stores import Bucket
from tests.trial_tasks import write_trial_task

POLICY = Path(__file__).parents[3] / "examples" / "quickstart" / "policy"
SERVER = ServerSettings("127.0.0.1", 0, None)


@pytest.fixture
def run(tmp_path: Path) -> RLRun:
    for name in ("train", "validation", "held-out"):
        write_trial_task(tmp_path / name / "task", files={"instruction.md": name})
    return RLRun.model_validate(
        run_manifest(
            spec__model__source={"path": str(POLICY)},
            spec__sandbox={"provider": "local"},
            spec__stages=[{"name": "before", "evaluate": {"checkpoint": "Initial"}}],
        )
    )


def run_folder(folder: Path, run: RLRun, base_dir: Path, kept_in: S3Source) -> Path:
    request = DriverRequest(run=run, base_dir=base_dir, stages=["before"], kept_in=kept_in)
    folder.mkdir()
    (folder / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
    return folder


async def test_a_segment_that_ended_is_answered_on_another_machine_and_leaves_its_report_in_s3(
    bucket: Bucket, run: RLRun, tmp_path: Path
) -> None:
    report = StageReport(
        stage="before", kind="Evaluate", result=StageResult.PASSED, fingerprint=fingerprint(run, run.spec.stages[0])
    )
    RunStorage.open(tmp_path / "a", bucket.source()).taken_over().stage("before").write_report(report)
    folder = run_folder(tmp_path / "b", run, tmp_path, bucket.source())
    assert await drive(folder, None, SERVER) is ExitCode.PASSED
    assert {REQUEST_FILE, "owner", "report.html", "stages/before.json"} <= set(bucket.stored_keys())
    assert "driver.json" not in bucket.stored_keys(), "the address of a driver is of its machine alone"


async def test_a_bucket_that_is_not_there_ends_the_run_before_it_begins(
    bucket: Bucket, run: RLRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = S3Source(uri="s3://nobodys/run", endpoint_url=bucket.url)
    folder = run_folder(tmp_path / "a", run, tmp_path, nowhere)
    assert await drive(folder, None, SERVER) is ExitCode.INVALID
    assert "make the bucket, or correct the URI" in capsys.readouterr().out
