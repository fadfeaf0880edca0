from pathlib import Path

import pytest

from seatrial.run_folders import kept_in, latest_run_folder, new_run_folder
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage
from tests.manifests import run_manifest
from tests.object_stores import Bucket
from tests.trajectories import make_trajectory


@pytest.fixture
def run(bucket: Bucket) -> RLRun:
    source = bucket.source("team").model_dump(by_alias=True, exclude_none=True)
    return RLRun.model_validate(run_manifest(spec__storage={"s3": source}))


def machine(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to another machine: run folders start at the working directory."""
    (tmp_path / name).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / name)


def drive(run: RLRun) -> Path:
    """What a launcher and a driver leave of a run."""
    folder = new_run_folder(run)
    request = DriverRequest(run=run, base_dir=Path(), stages=["train"], kept_in=kept_in(run, folder))
    (folder / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
    stage = RunStorage.open(folder, request.kept_in).taken_over().stage("train")
    stage.write_group("g", [make_trajectory(folder.name)])
    return folder


def test_runs_are_numbered_over_all_machines_and_the_latest_is_found_on_each(
    run: RLRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, "here", monkeypatch)
    with pytest.raises(InvalidInputError, match="s3://runs/team/run: there is no run of run"):
        latest_run_folder(run)
    assert drive(run).name == "001"
    machine(tmp_path, "there", monkeypatch)
    assert drive(run).name == "002"
    machine(tmp_path, "here", monkeypatch)
    assert new_run_folder(run).name == "003", "nobody has driven it yet"
    latest = latest_run_folder(run)
    assert latest == tmp_path / "here" / "runs" / "run" / "002"
    assert [one.trial_id for one in RunStorage(latest).trajectories()] == ["002"]
    assert DriverRequest.model_validate_json((latest / REQUEST_FILE).read_bytes()).kept_in == kept_in(run, latest)
