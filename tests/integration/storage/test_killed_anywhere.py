"""Processes of a run are killed with SIGKILL at random moments; what was stored stays, and what is trained is exact.

`bench/kills.py` does the same more often.
"""

import random
from pathlib import Path

import pytest

from tests.mortal_runs import Death, MortalRun, write_tiny_model
from tests.object_stores import AnyBucket


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("mortal") / "model")


@pytest.fixture(scope="module")
def calm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> MortalRun:
    """A synchronous run that nobody disturbs."""
    return lived_through(MortalRun(tmp_path_factory.mktemp("calm"), model, max_staleness=0), seed=0, num_kills=0)


def lived_through(run: MortalRun, *, seed: int, num_kills: int) -> MortalRun:
    death = Death(run, random.Random(seed))  # noqa: S311  reproducible
    death.until_the_end(num_kills)
    return run


def test_a_synchronous_run_that_was_killed_equals_one_that_was_not(
    model: Path, calm: MortalRun, tmp_path: Path
) -> None:
    killed = lived_through(MortalRun(tmp_path / "killed", model, max_staleness=0), seed=1, num_kills=3)
    assert killed.trained() == calm.trained()
    assert killed.weights() == calm.weights()


def test_an_asynchronous_run_loses_no_group_and_its_log_gives_the_same_weights(model: Path, tmp_path: Path) -> None:
    killed = lived_through(MortalRun(tmp_path / "killed", model, max_staleness=2), seed=2, num_kills=3)
    groups, batches = killed.durable()
    trained = [group_id for group_ids in batches.values() for group_id in group_ids]
    assert len(trained) == len(set(trained)) == 6 * 4
    assert set(trained) <= groups
    replayed = lived_through(killed.replay(tmp_path / "replayed"), seed=0, num_kills=0)
    assert replayed.weights() == killed.weights()


def test_a_run_in_s3_goes_on_from_the_bucket_when_uploads_are_cut(
    model: Path, calm: MortalRun, tmp_path: Path, any_bucket: AnyBucket
) -> None:
    killed = MortalRun(tmp_path / "killed", model, max_staleness=0, kept_in=any_bucket.source())
    lived_through(killed, seed=3, num_kills=2)
    killed.storage(99).taken_over()
    assert killed.trained() == calm.trained()
    assert killed.weights() == calm.weights()
