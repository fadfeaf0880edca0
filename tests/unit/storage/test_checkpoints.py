import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from seatrial_api.errors import CorruptionError
from seatrial_trainer.storage.checkpoints import CheckpointStore


def save(store: CheckpointStore, version: int) -> None:
    with store.writing(version, {"cursor": version}) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights").write_bytes(bytes([version]) * 1000)


def test_a_checkpoint_comes_back_with_its_state(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 5)
    checkpoint = store.open(5)
    assert checkpoint.manifest.state == {"cursor": 5}
    assert (checkpoint.policy / "weights").read_bytes() == bytes([5]) * 1000


def test_a_checkpoint_whose_writing_fails_never_existed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)

    def fail_halfway() -> None:
        with store.writing(2, {}) as folder:
            (folder / "policy").mkdir()
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_halfway()
    assert store.versions() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


@pytest.mark.parametrize("damage", ["altered", "missing", "no manifest"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    save(store, 2)
    weights = tmp_path / "000002" / "policy" / "weights"
    match damage:
        case "altered":
            weights.write_bytes(b"\0" * 1000)
        case "missing":
            weights.unlink()
        case _:
            (tmp_path / "000002" / "MANIFEST.json").write_text("{")
    with pytest.raises(CorruptionError, match="000002"):
        store.open(2)
    with capture_logs() as logs:
        latest = store.latest()
    assert latest is not None
    assert latest.manifest.version == 1
    (warning,) = logs
    assert (warning["log_level"], warning["version"]) == ("warning", 2)
    assert "000002" in warning["error"]


def test_whatever_bit_flips_a_checkpoint_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    store.score(1, 0.5)
    for path in (file for file in (tmp_path / "000001").rglob("*") if file.is_file()):
        whole = path.read_bytes()
        for place in range(0, len(whole), 3):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
            with pytest.raises(CorruptionError, match="000001"):
                store.open(1)
        path.write_bytes(whole)
    assert store.open(1).manifest.score == 0.5


def test_a_checkpoint_under_the_name_of_another_one_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    shutil.copytree(tmp_path / "000001", tmp_path / "000002")
    with pytest.raises(CorruptionError, match="is of version 1; it was put where 2 belongs"):
        store.open(2)
    latest = store.latest()
    assert latest is not None
    assert latest.path == tmp_path / "000001"


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for version, score in ((1, 0.2), (2, 0.9), (3, 0.5), (4, 0.4), (5, 0.3)):
        save(store, version)
        store.score(version, score)
    store.prune(keep=2)
    assert store.versions() == [2, 4, 5]
    best = store.best()
    assert best is not None
    assert best.manifest.version == 2


def test_a_damaged_checkpoint_hides_neither_the_best_nor_the_others_from_pruning(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for version, score in ((1, 0.9), (2, 0.5), (3, 0.4)):
        save(store, version)
        store.score(version, score)
    (tmp_path / "000002" / "MANIFEST.json").write_text("{")
    assert store.scores() == {1: 0.9, 3: 0.4}
    store.prune(keep=1)
    assert store.versions() == [1, 3]


def test_what_a_killed_process_left_half_written_is_removed_by_the_next_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    left_over = tmp_path / ".000001.1.partial"
    left_over.mkdir()
    save(store, 1)
    assert not left_over.exists()
    assert store.versions() == [1]


def test_without_validation_there_is_no_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    assert store.best() is None
    assert CheckpointStore(tmp_path / "empty").latest() is None
