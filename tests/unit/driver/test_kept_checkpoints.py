"""What a launcher is told of checkpoints."""

from pathlib import Path

from seatrial_trainer.driver.kept import kept
from seatrial_trainer.storage.checkpoints import CheckpointStore


def test_nothing_is_told_before_there_is_a_checkpoint(tmp_path: Path) -> None:
    assert kept(CheckpointStore(tmp_path)) is None


def test_the_newest_and_the_best_are_told_with_their_validation_and_the_newest_among_equals_is_best(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path)
    for version, score in ((5, 0.4), (10, 0.6), (15, 0.6), (20, 0.5), (25, None)):
        with store.writing(version, {}) as folder:
            (folder / "weights").write_text("w")
        if score is not None:
            store.score(version, score)
    told = kept(store)
    assert told is not None
    assert told.last is not None
    assert (told.last.step, told.last.uri, told.last.validation_pass_rate) == (25, str(tmp_path / "000025"), None)
    assert told.best is not None
    assert (told.best.step, told.best.uri, told.best.validation_pass_rate) == (15, str(tmp_path / "000015"), 0.6)


def test_without_validation_no_checkpoint_is_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with store.writing(5, {}) as folder:
        (folder / "weights").write_text("w")
    told = kept(store)
    assert told is not None
    assert told.best is None
