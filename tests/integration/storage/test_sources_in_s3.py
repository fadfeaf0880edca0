import os
from pathlib import Path

import pytest

from seatrial_api.driver_request import PodInputs
from seatrial_api.errors import InvalidInputError
from seatrial_api.pods import INPUTS_VARIABLE
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import Source
from seatrial_rollout.engine.model_files import find_model
from seatrial_rollout.object_store.source import fetch_source
from seatrial_rollout.trials import bring_inputs
from seatrial_rollout.trials.tasks import load_task_set
from tests.object_stores import BUCKET, Bucket
from tests.trial_tasks import write_trial_task


def upload(bucket: Bucket, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.client.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(folder)}")


def test_a_model_in_s3_is_found_as_a_folder(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        bucket.client.put_object(Bucket=BUCKET, Key=f"models/tiny/{name}", Body=name.encode())
    source = Source(s3=bucket.source("models/tiny"))
    folder = find_model(source, tmp_path)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        name: name for name in ("config.json", "model.safetensors")
    }
    assert find_model(source, tmp_path) == folder


def test_tasks_in_s3_are_a_task_set(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        write_trial_task(tmp_path / "tasks" / name, files={"instruction.md": name})
    upload(bucket, tmp_path / "tasks", "tasks/train")
    task_set = TaskSet(source=Source(s3=bucket.source("tasks/train")))
    tasks = load_task_set(task_set, tmp_path, tmp_path / "cache")
    assert [task.name for task in tasks] == ["a", "b/c"]
    assert os.access(tasks[0].path / "tests" / "test.sh", os.X_OK), "S3 keeps no modes"


def test_what_changed_in_s3_is_fetched_again_and_nothing_else(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("stays", "changes", "goes"):
        bucket.client.put_object(Bucket=BUCKET, Key=f"set/{name}", Body=b"old")
    folder = fetch_source(bucket.source("set"), tmp_path)
    (folder / "stays").write_text("not fetched again")
    bucket.client.put_object(Bucket=BUCKET, Key="set/changes", Body=b"new")
    bucket.client.delete_object(Bucket=BUCKET, Key="set/goes")
    assert fetch_source(bucket.source("set"), tmp_path) == folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "stays": "not fetched again",
        "changes": "new",
    }


def test_an_empty_prefix_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="s3://runs/nothing holds no object"):
        fetch_source(bucket.source("nothing"), tmp_path)


def test_an_object_that_would_lie_outside_the_folder_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    bucket.client.put_object(Bucket=BUCKET, Key="set/../../evil", Body=b"")
    with pytest.raises(InvalidInputError, match="rename it"):
        fetch_source(bucket.source("set"), tmp_path)
    assert not (tmp_path / "evil").exists()


def test_a_pod_brings_its_inputs_to_where_the_driver_finds_them(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("config.json", "model.safetensors"):
        bucket.client.put_object(Bucket=BUCKET, Key=f"models/tiny/{name}", Body=b"{}")
    upload(bucket, write_trial_task(tmp_path / "tasks" / "a").parent, "tasks/train")
    model, tasks = Source(s3=bucket.source("models/tiny")), TaskSet(source=Source(s3=bucket.source("tasks/train")))
    inputs = PodInputs(base_dir=tmp_path / "scratch", model=model, tasks=[tasks])
    monkeypatch.setenv(INPUTS_VARIABLE, inputs.model_dump_json(by_alias=True))
    assert bring_inputs.main() == 0
    brought = {path: path.stat().st_mtime_ns for path in (tmp_path / "scratch").rglob("*") if path.is_file()}
    found = find_model(model, inputs.base_dir), load_task_set(tasks, inputs.base_dir, inputs.base_dir / ".cache")
    assert found[0] / "config.json" in brought
    assert found[1][0].path / "instruction.md" in brought
    assert all(path.stat().st_mtime_ns == at for path, at in brought.items() if path.suffix != ".json")


def test_a_pod_whose_inputs_are_not_there_does_not_start(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = PodInputs(base_dir=tmp_path, model=Source(s3=bucket.source("none")), tasks=[])
    monkeypatch.setenv(INPUTS_VARIABLE, inputs.model_dump_json(by_alias=True))
    assert bring_inputs.main() == 1
