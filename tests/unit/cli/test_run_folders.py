import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.run_folders import check_resumable, evaluation_folder, latest_run_folder, new_run_folder
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.progress import Progress
from seatrial_api.rlrun import RLRun
from seatrial_trainer.driver.request import ADDRESS_FILE
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.observability.server import serve
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage
from tests.manifests import run_manifest
from tests.trajectories import make_trajectory

type MakeRun = Callable[..., RLRun]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(**changes: Any) -> RLRun:
        return RLRun.model_validate(run_manifest(spec__storage={"path": str(tmp_path)}, **changes))

    return make


def start(run: RLRun) -> Path:
    folder = new_run_folder(run)
    stages = [stage.name for stage in run.spec.stages]
    request = DriverRequest(run=run, base_dir=Path(), stages=stages)
    (folder / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
    return folder


def test_the_latest_run_is_the_one_with_the_highest_number(make_run: MakeRun) -> None:
    run = make_run()
    with pytest.raises(InvalidInputError, match="there is no run of run"):
        latest_run_folder(run)
    first = start(run)
    assert first.name == "001"
    first.rename(first.with_name("999"))
    assert start(run).name == "1000"
    assert latest_run_folder(run).name == "1000"


def test_an_evaluation_is_not_written_over_a_file(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(InvalidInputError, match="notes is a file; name a folder"):
        evaluation_folder(make_run(), tmp_path / "notes", resume=False)


def test_what_has_not_begun_may_change(make_run: MakeRun) -> None:
    folder = start(make_run())
    check_resumable(folder, make_run(spec__stages__3__train__steps=40, spec__guards={"maxEntropy": 9.0}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"spec__algorithm": {"groupSize": 4}}, r"\.spec\.algorithm\.groupSize: \d+ before, 4 now"),
        ({"spec__stages__1__evaluate__passes": 2}, "a stage that has begun cannot change or go"),
    ],
)
def test_what_made_stored_data_cannot_change(make_run: MakeRun, changes: dict[str, Any], complaint: str) -> None:
    folder = start(make_run())
    RunStorage(folder).stage("before").write_group("before-g", [make_trajectory()])
    with pytest.raises(InvalidInputError, match=complaint):
        check_resumable(folder, make_run(**changes))


async def test_a_run_that_a_driver_works_on_cannot_be_resumed(make_run: MakeRun) -> None:
    folder = start(make_run())
    progress = Progress(run="run")
    async with serve("127.0.0.1", 0, lambda: progress, RunMetrics("default", "run").registry) as url:
        (folder / ADDRESS_FILE).write_text(json.dumps({"url": url, "pid": os.getpid()}))
        with pytest.raises(InvalidInputError, match="a driver still works on this run"):
            await asyncio.to_thread(check_resumable, folder, make_run())
    await asyncio.to_thread(check_resumable, folder, make_run())
