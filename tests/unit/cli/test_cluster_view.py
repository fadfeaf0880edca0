"""What `seatrial status` shows of a run in a cluster."""

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from seatrial.cluster.view import render
from seatrial_api.rlrun import RLRun
from seatrial_api.status import AttemptStatus, Progress, RLRunStatus, StageStatus
from tests.manifests import run_manifest

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def shown(**status: Any) -> str:
    """The view of a run whose first stage has begun."""
    row = StageStatus(name="preflight", started_at=BEGAN)
    told = RLRunStatus(stage="preflight", stages=[row], progress=Progress(step=7, of=9, percent=77), **status)
    run = RLRun.model_validate(run_manifest(metadata__namespace="team")).model_copy(update={"status": told})
    console = Console(width=150, file=io.StringIO())
    with console.capture() as captured:
        console.print(render(run))
    return captured.get()


def test_a_stage_runs_while_an_attempt_holds_nodes() -> None:
    text = shown(current=AttemptStatus(started_at=BEGAN))
    assert "running" in text
    assert "7/9 (77 %)" in text


def test_a_stage_whose_nodes_are_released_does_not_seem_to_run() -> None:
    text = shown()
    assert "stopped" in text
    assert "running" not in text
    assert "7/9" not in text
