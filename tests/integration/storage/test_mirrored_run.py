import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial_api.errors import CorruptionError
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_rollout.object_store.errors import StoreUnavailableError
from seatrial_trainer.storage.checkpoints import CheckpointStore
from seatrial_trainer.storage.manifest import BatchManifest
from seatrial_trainer.storage.mirror import Mirror
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage, SupersededError
from tests.object_stores import BUCKET, AnyBucket, Bucket
from tests.trajectories import make_trajectory

SAVE_AND_HANG = """
import sys, threading
from pathlib import Path
from seatrial_api.spec.model import S3Source
from seatrial_trainer.storage.run_storage import RunStorage

stage = RunStorage.open(Path(sys.argv[2]), S3Source.model_validate_json(sys.argv[1])).taken_over().stage("train")
stored = []

def hang_before_the_manifest(params, **_):
    if params["Key"].endswith("checkpoints/000002/MANIFEST.json"):
        print("all but the manifest", flush=True)
        threading.Event().wait()

stage.files.store._client.meta.events.register("before-parameter-build.s3.PutObject", hang_before_the_manifest)
for version in (1, 2):
    with stage.checkpoints.writing(version, {}) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights").write_bytes(bytes([version]) * 1000)
    print(stage.checkpoints.versions(), flush=True)
stage.checkpoints.settle()
"""


def open_run(bucket: AnyBucket, folder: Path) -> RunStorage:
    return RunStorage.open(folder, bucket.source())


def impatient_run(bucket: Bucket, folder: Path) -> RunStorage:
    """A run whose store is waited for a second only."""
    opened = open_run(bucket, folder)
    assert isinstance(opened.files, Mirror)
    return replace(opened, files=replace(opened.files, store=bucket.store(patience_seconds=1.0))).taken_over()


def save(store: CheckpointStore, version: int) -> None:
    with store.writing(version, {"cursor": version}) as folder:
        for part in ("policy", "model"):
            (folder / part).mkdir()
            (folder / part / "weights").write_bytes(bytes([version]) * 1000)
        (folder / "model" / ".gitattributes").write_text("a model's own")


def report(stage: str) -> StageReport:
    return StageReport(stage=stage, kind="Train", result=StageResult.PASSED, fingerprint="question")


def written_run(bucket: AnyBucket, folder: Path) -> RunStorage:
    """A run with something of every kind."""
    folder.mkdir(parents=True)
    (folder / REQUEST_FILE).write_text("{}")
    storage = open_run(bucket, folder).taken_over()
    stage = storage.stage("train")
    stage.write_group("g-1", [make_trajectory("t-1")])
    stage.write_failure(make_trajectory("t-2"))
    assert stage.next_attempt() == 0
    for version in (0, 1):
        stage.write_batch(BatchManifest(version=version, group_ids=["g-1"]))
        stage.write_comparison(version, {"t-1": [[0.5]]})
        stage.append_step({"version": version + 1})
    for version in (1, 2, 3):
        save(stage.checkpoints, version)
        stage.checkpoints.score(version, version / 10)
    stage.checkpoints.prune(keep=2)
    for name in ("zebra", "train"):
        storage.stage(name).write_report(report(name))
    (folder / "report.html").write_text("<p>")
    storage.keep_pages()
    return storage


def everything(storage: RunStorage) -> list[Any]:
    stage = storage.stage("train")
    return [
        list(storage.reports()),
        list(storage.trajectories()),
        storage.comparisons(),
        stage.read_batches(0),
        stage.read_steps(),
        stage.group_ids(),
        stage.checkpoints.versions(),
        stage.checkpoints.scores(),
    ]


def test_a_run_goes_on_in_a_fresh_folder_with_all_it_had(any_bucket: AnyBucket, tmp_path: Path) -> None:
    before = written_run(any_bucket, tmp_path / "a")
    after = open_run(any_bucket, tmp_path / "b").taken_over()
    assert everything(after) == everything(before)
    assert [one.stage for one in after.reports()] == ["zebra", "train"], "in the order in which they were written"
    assert after.stage("train").next_attempt() == 1
    assert after.stage("train").read_report("question") == report("train")
    newest = after.stage("train").checkpoints.latest()
    assert newest is not None
    assert newest.manifest.state == {"cursor": 3}
    assert (newest.policy / "weights").read_bytes() == bytes([3]) * 1000
    assert (tmp_path / "b" / "report.html").read_text() == "<p>"
    assert (tmp_path / "b" / REQUEST_FILE).read_text() == "{}"


def test_the_store_keeps_as_many_checkpoints_as_the_folder(any_bucket: AnyBucket, tmp_path: Path) -> None:
    written_run(any_bucket, tmp_path / "a")
    kept = {key.split("/")[3] for key in any_bucket.stored_keys() if "/checkpoints/" in key}
    assert kept == {"000002", "000003"}


def test_big_files_come_only_when_they_are_opened(any_bucket: AnyBucket, tmp_path: Path) -> None:
    written_run(any_bucket, tmp_path / "a")
    checkpoints = open_run(any_bucket, tmp_path / "b").taken_over().stage("train").checkpoints
    assert list((tmp_path / "b").rglob("weights")) == []
    checkpoint = checkpoints.open(2)
    assert sorted(path.parent for path in (tmp_path / "b").rglob("weights")) == [checkpoint.model, checkpoint.policy]


def test_whoever_looks_at_a_run_brings_it_and_changes_nothing(any_bucket: AnyBucket, tmp_path: Path) -> None:
    before = written_run(any_bucket, tmp_path / "a")
    stored = any_bucket.stored_keys()
    (tmp_path / "b" / "stages").mkdir(parents=True)
    (tmp_path / "b" / "stages" / "mine.txt").write_text("mine")
    onlooker = open_run(any_bucket, tmp_path / "b")
    onlooker.files.refresh()
    assert everything(onlooker) == everything(before)
    assert (tmp_path / "b" / "stages" / "mine.txt").exists()
    assert any_bucket.stored_keys() == stored
    before.stage("train").write_batch(BatchManifest(version=2, group_ids=["g-1"]))


def test_what_only_the_folder_had_was_never_there(any_bucket: AnyBucket, tmp_path: Path) -> None:
    storage = written_run(any_bucket, tmp_path / "a")
    on_disk = RunStorage(tmp_path / "a").stage("train")
    on_disk.write_group("g-2", [make_trajectory("t-3")])
    on_disk.write_batch(BatchManifest(version=2, group_ids=["g-2"]))
    save(on_disk.checkpoints, 9)
    (tmp_path / "a" / "logs").mkdir()
    (tmp_path / "a" / "logs" / "engine.log").write_text("kept")
    any_bucket.client.put_object(Bucket=BUCKET, Key="team/run/stages/train/checkpoints/.000004.7.partial/x", Body=b"")
    again = open_run(any_bucket, tmp_path / "a").taken_over()
    assert not [key for key in any_bucket.stored_keys() if ".partial" in key]
    assert everything(again) == everything(open_run(any_bucket, tmp_path / "b").taken_over())
    assert again.stage("train").group_ids() == ["g-1"]
    assert again.stage("train").checkpoints.versions() == [2, 3]
    assert (tmp_path / "a" / "logs" / "engine.log").exists()
    assert storage.owner != again.owner


def test_a_driver_killed_in_mid_upload_leaves_the_checkpoint_before(any_bucket: AnyBucket, tmp_path: Path) -> None:
    arguments = [any_bucket.source().model_dump_json(by_alias=True), str(tmp_path / "a")]
    with subprocess.Popen(
        [sys.executable, "-c", SAVE_AND_HANG, *arguments], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        told = [child.stdout.readline().strip() for _ in range(3)]
        child.send_signal(signal.SIGKILL)
    assert sorted(told) == ["[1, 2]", "[1]", "all but the manifest"], "the folder had it before the store"
    assert "stages/train/checkpoints/000002/policy/weights" in any_bucket.stored_keys()
    for folder in ("a", "b"):  # on the same machine, and on another
        checkpoints = open_run(any_bucket, tmp_path / folder).taken_over().stage("train").checkpoints
        assert checkpoints.versions() == [1]
        latest = checkpoints.latest()
        assert latest is not None
        assert latest.manifest.version == 1
    save(checkpoints, 2)
    checkpoints.settle()
    again = open_run(any_bucket, tmp_path / "c").taken_over().stage("train").checkpoints.latest()
    assert again is not None
    assert again.manifest.version == 2


@pytest.mark.parametrize("damage", ["altered", "missing", "no manifest"])
def test_a_checkpoint_damaged_in_the_store_is_set_aside_there_and_the_one_before_used(
    any_bucket: AnyBucket, tmp_path: Path, damage: str
) -> None:
    written_run(any_bucket, tmp_path / "a")
    folder = "team/run/stages/train/checkpoints/000003"
    match damage:
        case "altered":
            any_bucket.client.put_object(Bucket=BUCKET, Key=f"{folder}/policy/weights", Body=b"\0" * 1000)
        case "missing":
            any_bucket.client.delete_object(Bucket=BUCKET, Key=f"{folder}/policy/weights")
        case _:
            any_bucket.client.put_object(Bucket=BUCKET, Key=f"{folder}/MANIFEST.json", Body=b"{")
    checkpoints = open_run(any_bucket, tmp_path / "b").taken_over().stage("train").checkpoints
    with pytest.raises(CorruptionError, match="000003"):
        checkpoints.open(3)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.manifest.version == 2
    checkpoints.set_aside_after(latest)
    checkpoints.settle()
    kept = {key.split("/")[3] for key in any_bucket.stored_keys() if "/checkpoints/" in key}
    assert kept == {"000002", "damaged-000003"}


def test_a_file_damaged_here_is_brought_again(any_bucket: AnyBucket, tmp_path: Path) -> None:
    checkpoints = written_run(any_bucket, tmp_path / "a").stage("train").checkpoints
    weights = checkpoints.root / "000003" / "policy" / "weights"
    weights.write_bytes(b"\0" * 1000)
    assert checkpoints.open(3).manifest.version == 3
    assert weights.read_bytes() == bytes([3]) * 1000


def test_only_the_driver_that_came_last_stores_anything(any_bucket: AnyBucket, tmp_path: Path) -> None:
    first = open_run(any_bucket, tmp_path / "a").taken_over().stage("train")
    second = open_run(any_bucket, tmp_path / "b").taken_over().stage("train")
    with pytest.raises(SupersededError):
        first.write_batch(BatchManifest(version=0, group_ids=[]))
    with pytest.raises(SupersededError):
        first.write_report(report("train"))
    save(first.checkpoints, 1)
    with pytest.raises(SupersededError):
        first.checkpoints.settle()
    with pytest.raises(SupersededError):
        first.checkpoints.prune(keep=1)
    assert second.checkpoints.versions() == []
    second.write_batch(BatchManifest(version=0, group_ids=[]))
    save(second.checkpoints, 1)
    second.write_report(report("train"))


def test_a_driver_that_stood_still_in_mid_log_does_not_log_over_the_one_that_took_over(
    any_bucket: AnyBucket, tmp_path: Path
) -> None:
    first = open_run(any_bucket, tmp_path / "a").taken_over().stage("train")
    behind = replace(first, owner="")  # it asked who owns the run right before it lost it
    second = open_run(any_bucket, tmp_path / "b").taken_over().stage("train")
    manifests = [BatchManifest(version=0, group_ids=[], scheduler={"driver": name}) for name in ("first", "second")]
    second.write_batch(manifests[1])
    with pytest.raises(SupersededError, match="has logged step 0"):
        behind.write_batch(manifests[0])
    replace(second, owner="").write_batch(manifests[1])  # an answer that was lost makes it be asked again
    assert open_run(any_bucket, tmp_path / "c").taken_over().stage("train").read_batches(0) == [manifests[1]]


def test_a_stage_that_is_discarded_is_gone_for_good(any_bucket: AnyBucket, tmp_path: Path) -> None:
    storage = written_run(any_bucket, tmp_path / "a")
    storage.stage("train").discard()
    after = open_run(any_bucket, tmp_path / "b").taken_over()
    assert not after.stage("train").has_begun
    assert [one.stage for one in after.reports()] == ["zebra"]


def test_a_group_that_cannot_be_stored_is_not_seen(bucket: Bucket, tmp_path: Path) -> None:
    stage = impatient_run(bucket, tmp_path / "a").stage("train")
    with bucket.out_of_order(), pytest.raises(StoreUnavailableError, match="g-1"):
        stage.write_group("g-1", [make_trajectory()])
    assert open_run(bucket, tmp_path / "b").taken_over().stage("train").group_ids() == []


def test_nothing_is_stored_after_what_could_not_be(bucket: Bucket, tmp_path: Path) -> None:
    stage = impatient_run(bucket, tmp_path / "a").stage("train")
    save(stage.checkpoints, 1)
    stage.checkpoints.settle()
    with bucket.out_of_order():
        save(stage.checkpoints, 2)
        with pytest.raises(StoreUnavailableError, match="checkpoints/000002"):
            stage.checkpoints.settle()
    stage.checkpoints.prune(keep=1)
    with pytest.raises(StoreUnavailableError, match="checkpoints/000002"):
        stage.write_group("g-1", [make_trajectory()])
    with pytest.raises(StoreUnavailableError, match="checkpoints/000002"):
        stage.write_report(report("train"))
    after = open_run(bucket, tmp_path / "b").taken_over().stage("train")
    assert after.checkpoints.versions() == [1], "the older one was not removed for one that never arrived"
    assert after.read_report("question") is None
