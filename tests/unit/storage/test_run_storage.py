import os
import re
import resource
import signal
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.errors import CorruptionError
from seatrial_api.finding import Finding, FindingKind
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_api.trajectory import GivenSpan, Trajectory
from seatrial_trainer.storage import trajectory_table
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.manifest import BatchManifest
from seatrial_trainer.storage.run_storage import RunStorage, SupersededError, file_name
from tests.trajectories import make_trajectory


def test_a_stored_group_comes_back_equal(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    group = [make_trajectory(f"g1/{index}", reward=index / 3, failed_calls=index) for index in range(3)]
    stage.write_group("g1", group)
    assert stage.read_group("g1") == group
    assert stage.group_ids() == ["g1"]


@given(st.lists(st.floats(max_value=0, allow_infinity=False, allow_nan=False), min_size=1, max_size=20))
def test_logprobs_survive_storage_to_the_bit(logprobs: list[float]) -> None:
    trajectory = make_trajectory(sampled=len(logprobs))
    sequence = trajectory.sequences[0].model_copy(update={"logprobs": [0.0] * 3 + logprobs})
    stored = trajectory.model_copy(update={"sequences": [sequence]})
    (read,) = trajectory_table.decode(trajectory_table.encode([stored]), origin="memory")
    assert read.sequences[0].logprobs == [0.0] * 3 + logprobs


def test_stored_groups_open_in_datasets(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    for name in ("g1", "g2"):
        stage.write_group(name, [make_trajectory(f"{name}/0"), make_trajectory(f"{name}/1")])
    rows = datasets.Dataset.from_parquet(str(tmp_path / "trajectories/train/*.parquet"), cache_dir=str(tmp_path / "c"))
    assert len(rows) == 4
    assert rows[0]["sequences"][0]["token_ids"] == [1, 2, 3, 10, 11, 12, 13]


def test_a_group_file_that_was_cut_is_named(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    stage.write_group("g1", [make_trajectory()])
    path = tmp_path / "trajectories/train/g1.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptionError, match=r"g1\.parquet"):
        stage.read_group("g1")


def test_batches_are_read_from_a_version_up_to_the_first_gap(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    for version in (3, 4, 6):
        stage.write_batch(BatchManifest(version=version, group_ids=[f"g{version}"]))
    assert [manifest.version for manifest in stage.read_batches(3)] == [3, 4]
    assert stage.read_batches(5) == []


def test_a_report_is_served_again_only_for_the_same_question(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("preflight")
    report = StageReport(stage="preflight", kind="Preflight", result=StageResult.PASSED, fingerprint="abc")
    stage.write_report(report)
    assert stage.read_report("abc") == report
    assert stage.read_report("abx") is None


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    path.parent.chmod(0o500)
    try:
        if os.access(path.parent, os.W_OK):  # root may write anywhere: make the new name impossible instead
            (tmp_path / f".file.{os.getpid()}.partial").mkdir()
        with pytest.raises(OSError, match=re.escape(str(path))):
            write_atomic(path, b"new")
    finally:
        path.parent.chmod(0o700)
    assert path.read_bytes() == b"old"


def test_a_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "group.parquet"
    write_atomic(path, b"old")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"group\.parquet"):
            write_atomic(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("group.parquet", b"old")]


def test_every_field_of_a_trajectory_survives_storage() -> None:
    span = GivenSpan(sequence=0, start=0, stop=3, messages="[]", tools="[]", rendered_at="2026-01-01T00:00:00Z")
    told = {"charged_seconds": 1.5, "wall_seconds": 2.5, "world": "acme", "num_restores": 2, "restore_seconds": 0.5}
    found = [Finding(kind=FindingKind.TAMPERING, path="/tests/x", detail="was removed")]
    changed = {"given": [span], "detail": "x", "findings": found, "num_resumptions": 1, **told}
    stored = make_trajectory(failed_calls=1).model_copy(update=changed)
    assert set(stored.model_fields_set) == set(Trajectory.model_fields)
    (read,) = trajectory_table.decode(trajectory_table.encode([stored]), origin="memory")
    assert read == stored


def test_a_group_is_found_whatever_its_id_holds(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("before")
    stage.write_group("before-my.module:Agent-task/7", [make_trajectory()])
    assert stage.has_group("before-my.module:Agent-task/7")
    assert not stage.has_group("before-my.module:Agent-task/8")


def test_names_that_cannot_be_file_names_stay_distinct() -> None:
    assert file_name("g-1.a") == "g-1.a"
    assert file_name("a/b") != file_name("a_b")
    assert file_name("a/b") != file_name("a:b")
    assert "/" not in file_name("a/b")


def test_a_discarded_stage_is_gone_and_others_stay(tmp_path: Path) -> None:
    storage = RunStorage(tmp_path)
    for name in ("before", "after"):
        storage.stage(name).write_group(f"{name}-g", [make_trajectory()])
        storage.stage(name).append_step({"version": 1})
    report = StageReport(stage="after", kind="Evaluate", result=StageResult.GATE_FAILED, fingerprint="abc")
    storage.stage("after").write_report(report)
    storage.stage("after").discard()
    assert storage.stage("after").read_report("abc") is None
    assert storage.stage("after").group_ids() == []
    assert storage.stage("after").read_steps() == []
    assert storage.stage("before").group_ids() == ["before-g"]
    assert len(storage.stage("before").read_steps()) == 1


def test_the_newest_measurement_of_a_step_counts_and_a_torn_line_does_not(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    for step in ({"version": 1, "x": 1}, {"version": 2, "x": 1}, {"version": 1, "x": 2}):
        stage.append_step(step)
    with (tmp_path / "stages/train/steps.jsonl").open("a") as file:
        file.write('{"version": 3, "x"')
    assert [(step["version"], step["x"]) for step in stage.read_steps()] == [(1, 2), (2, 1)]


def test_a_driver_that_another_one_took_over_from_stores_nothing_more(tmp_path: Path) -> None:
    first = RunStorage(tmp_path).taken_over().stage("train")
    first.write_batch(BatchManifest(version=0, group_ids=["g0"], scheduler={}))
    second = RunStorage(tmp_path).taken_over().stage("train")
    with pytest.raises(SupersededError, match=str(tmp_path)):
        first.write_batch(BatchManifest(version=1, group_ids=["lost"], scheduler={}))
    with pytest.raises(SupersededError):
        first.write_report(StageReport(stage="train", kind="Train", result=StageResult.PASSED))
    with pytest.raises(SupersededError), first.checkpoints.writing(1, {}) as folder:
        (folder / "policy").mkdir()
    second.write_batch(BatchManifest(version=1, group_ids=["g1"], scheduler={}))
    with second.checkpoints.writing(1, {}) as folder:
        (folder / "policy").mkdir()
    assert [manifest.group_ids for manifest in second.read_batches(0)] == [["g0"], ["g1"]]
    assert second.checkpoints.versions() == [1]
    assert second.read_report("") is None


def test_whoever_only_reads_takes_nothing_over(tmp_path: Path) -> None:
    driver = RunStorage(tmp_path).taken_over().stage("train")
    assert list(RunStorage(tmp_path).reports()) == []
    driver.write_report(StageReport(stage="train", kind="Train", result=StageResult.PASSED))
    assert len(list(RunStorage(tmp_path).reports())) == 1
