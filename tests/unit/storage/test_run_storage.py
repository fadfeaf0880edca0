import os
import re
import resource
import signal
from contextlib import suppress
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from seatrial_api.errors import CorruptionError
from seatrial_api.finding import Finding, FindingKind
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_api.trajectory import GivenSpan, Trajectory
from seatrial_trainer.storage import trajectory_table
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.manifest import BatchManifest
from seatrial_trainer.storage.run_storage import RunStorage, StageStorage, SupersededError, file_name
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


def log_batch(stage: StageStorage, version: int, group_id: str = "g") -> None:
    """Store a group of two, and log that a step trains it."""
    stage.write_group(group_id, [make_trajectory(f"{group_id}/{index}", failed_calls=index) for index in range(2)])
    stage.write_batch(BatchManifest(version=version, group_ids=[group_id], scheduler={"tried": 7}))


def test_batches_are_read_from_a_version_on(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    assert stage.read_batches(0) == []
    for version in (0, 1, 2):
        log_batch(stage, version)
    assert [manifest.version for manifest in stage.read_batches(1)] == [1, 2]
    assert stage.read_batches(3) == []


def test_a_logged_batch_that_is_gone_is_named(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    for version in range(4):
        log_batch(stage, version)
    with pytest.raises(CorruptionError, match=r"000004\.json: was logged and is gone"):
        stage.read_batches(0, trained_version=5)
    (stage.folder / "batches" / "000001.json").unlink()
    with pytest.raises(CorruptionError, match=r"000001\.json: was logged and is gone"):
        stage.read_batches(0)
    assert [manifest.version for manifest in stage.read_batches(2)] == [2, 3]
    (stage.folder / "batches" / "000003.json").rename(stage.folder / "batches" / "000001.json")
    with pytest.raises(CorruptionError, match=r"000001\.json: is of version 3; it was put where 1 belongs"):
        stage.read_batches(0)


@pytest.mark.parametrize("file", ["stages/train/batches/000000.json", "trajectories/train/g.parquet"])
def test_whatever_bit_of_the_log_flips_it_is_not_trained_again(tmp_path: Path, file: str) -> None:
    stage = RunStorage(tmp_path).stage("train")
    log_batch(stage, 0)
    path = tmp_path / file
    whole = path.read_bytes()
    for place in range(0, len(whole), 23):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptionError, match=path.name):
            [stage.read_batch_groups(manifest) for manifest in stage.read_batches(0)]
    path.write_bytes(whole)
    assert [len(stage.read_batch_groups(manifest)) for manifest in stage.read_batches(0)] == [1]


def test_what_a_page_of_a_group_holds_has_a_checksum(tmp_path: Path) -> None:
    group = [make_trajectory(f"g/{index}", failed_calls=index) for index in range(3)]
    data = trajectory_table.encode(group)
    pages = data.rindex(b"schema")  # what follows tells where they lie
    for place in range(4, pages, 29):
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        with suppress(CorruptionError):
            assert trajectory_table.decode(flipped, origin="x") == group, "harmless, or told"


def test_a_damaged_group_that_waits_is_set_aside_loudly(tmp_path: Path) -> None:
    stage = RunStorage(tmp_path).stage("train")
    for name in ("g-1", "g-2"):
        stage.write_group(name, [make_trajectory(name)])
    path = tmp_path / "trajectories/train/g-1.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with capture_logs() as logs:
        assert [group[0].trial_id for group in stage.read_waiting(["g-1", "g-2"])] == ["g-2"]
    assert [(log["log_level"], log["group"]) for log in logs] == [("warning", "g-1")]
    assert stage.group_ids() == ["g-2"]
    assert path.with_suffix(".damaged").exists()


def test_of_two_drivers_that_log_the_same_step_one_succeeds(tmp_path: Path) -> None:
    first = RunStorage(tmp_path).stage("train")  # which took it over, and then stood still
    second = RunStorage(tmp_path).stage("train")
    log_batch(second, 0, "second")
    with pytest.raises(SupersededError, match="has logged step 0"):
        log_batch(first, 0, "first")
    assert [manifest.group_ids for manifest in first.read_batches(0)] == [["second"]]
    assert sorted(path.name for path in (first.folder / "batches").iterdir()) == ["000000.json"]


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
    log_batch(first, 0, "g0")
    second = RunStorage(tmp_path).taken_over().stage("train")
    with pytest.raises(SupersededError, match=str(tmp_path)):
        log_batch(first, 1, "lost")
    with pytest.raises(SupersededError):
        first.write_report(StageReport(stage="train", kind="Train", result=StageResult.PASSED))
    with pytest.raises(SupersededError), first.checkpoints.writing(1, {}) as folder:
        (folder / "policy").mkdir()
    log_batch(second, 1, "g1")
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
