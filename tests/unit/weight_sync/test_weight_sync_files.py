"""Weights that reach engines as files."""

import asyncio
from pathlib import Path

import pytest

from seatrial_rollout.engine.control import WeightFiles
from seatrial_trainer.weight_sync.files import FilesSync
from seatrial_trainer.weight_sync.protocol import WeightSyncError
from tests.engine_doubles import FakeEngine, FakePool


async def export(folder: Path) -> None:
    """Write ten bytes of weights."""
    (folder / "model.safetensors").write_bytes(b"0123456789")


def folders(directory: Path) -> list[Path]:
    """What is in a directory."""
    return list(directory.iterdir())


async def test_all_engines_load_the_export_and_the_pool_learns_of_it(tmp_path: Path) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    pool = FakePool(a, b)

    report = await FilesSync(pool, export, tmp_path).publish(3)

    assert (a.state.version, b.state.version, a.expected, b.expected) == (3, 3, 3, 3)
    assert a.files is not None
    assert pool.files == WeightFiles(3, a.files)
    assert (report.num_engines, report.bytes, report.paused_seconds) == (2, 10, 0.25)


async def test_an_engine_that_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    b.fails_at = "load"
    pool = FakePool(a, b)

    report = await FilesSync(pool, export, tmp_path).publish(3)

    assert report.num_engines == 1
    assert "failed at load" in report.failures[0]
    assert b.expected == 3  # it admits nothing until it has loaded the files that the pool tells it of


async def test_only_the_published_folder_is_kept(tmp_path: Path) -> None:
    pool = FakePool(FakeEngine("a"))
    sync = FilesSync(pool, export, tmp_path)

    for version in (1, 2, 0):
        await sync.publish(version)

    assert pool.files is not None
    assert folders(tmp_path) == [pool.files.path]
    assert pool.files.version == 0


async def test_when_no_engine_loads_the_version_is_not_published(tmp_path: Path) -> None:
    a = FakeEngine("a")
    a.fails_at = "load"
    pool = FakePool(a)

    with pytest.raises(WeightSyncError, match="failed at load"):
        await FilesSync(pool, export, tmp_path).publish(3)

    assert (pool.version, a.expected) == (0, 0)


async def test_an_export_that_hangs_is_given_up(tmp_path: Path) -> None:
    async def hang(_: Path) -> None:
        await asyncio.Event().wait()

    a = FakeEngine("a")
    with pytest.raises(WeightSyncError, match="export took too long"):
        await FilesSync(FakePool(a), hang, tmp_path, timeout_seconds=0.05).publish(3)

    assert a.state.version == 0


async def test_engines_that_hold_different_weights_are_no_version_in_debug_mode(tmp_path: Path) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    a.digests, b.digests = {"w": "1"}, {"w": "2"}
    pool = FakePool(a, b)

    with pytest.raises(WeightSyncError, match="b and a differ in 1 weights: w"):
        await FilesSync(pool, export, tmp_path, verify_checksums=True).publish(3)

    assert pool.version == 0
