"""What the command says when the driver, not the command itself, finds that a run cannot be."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from seatrial.execution import execute
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from tests.manifests import run_manifest


def test_the_drivers_sentence_is_told_and_nothing_else_of_its_log(tmp_path: Path) -> None:
    run = RLRun.model_validate(run_manifest(spec__model__source={"path": "missing"}))
    request = DriverRequest(run=run, base_dir=tmp_path, stages=["preflight"])
    errors = Console(file=StringIO())
    with pytest.raises(InvalidInputError, match=r"spec.model.source: .*missing does not exist; correct it"):
        execute(request, tmp_path, ["seatrial", "run"], Console(file=StringIO()), errors)
    assert isinstance(errors.file, StringIO)
    assert errors.file.getvalue() == ""
    assert (tmp_path / "report.html").exists()
