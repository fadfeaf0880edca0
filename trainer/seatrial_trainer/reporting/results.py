"""What Evaluate stages measured, for programs: `results.json`, and `trials.parquet` with a row for each trial."""

import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from seatrial_api.base import ApiModel
from seatrial_api.ceilings import Usage, dollars
from seatrial_api.driver_request import DriverRequest
from seatrial_api.spec.model import Source
from seatrial_api.spec.operations import CostSpec
from seatrial_api.stage_report import EvaluationResult, StageReport, TokenUse
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.evaluation.summary import behaviour, passed
from seatrial_trainer.reporting.token_costs import TokenLine
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.run_storage import RESULTS_FILE, TRIALS_FILE, USAGE_FILE, RunStorage, read_request

TRIALS_SCHEMA = pa.schema(
    [
        ("stage", pa.string()),
        ("task_set", pa.string()),
        ("harness", pa.string()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("weight_version", pa.int32()),
        ("task", pa.string()),
        ("domain", pa.string()),
        ("trial_id", pa.string()),
        ("outcome", pa.string()),
        ("is_infrastructure", pa.bool_()),
        ("detail", pa.string()),
        ("reward", pa.float64()),
        ("passed", pa.bool_()),
        ("turns", pa.float64()),
        ("tokens", pa.float64()),
        ("tokens_per_turn", pa.float64()),
        ("prompt_tokens", pa.float64()),
        ("tool_calls", pa.float64()),
        ("tool_success_rate", pa.float64()),
        ("code_share", pa.float64()),
        ("charged_seconds", pa.float64()),
        ("wall_seconds", pa.float64()),
    ]
)
"""What a trial that infrastructure ended did counts nowhere: filter by `is_infrastructure`."""


class SettingResult(EvaluationResult):
    """What one setting measured, and what that cost."""

    dollars: float
    """Its tokens at the prices of `spec.cost`. Node hours and the judge belong to the run: its settings are measured
    side by side."""


class Results(ApiModel):
    """`results.json`."""

    run: str
    """Name of the run."""
    model: Source
    """What was evaluated, a checkpoint by its own folder; where stages trained it, what they started from."""
    stages: dict[str, list[SettingResult]] = Field(default_factory=dict)
    """Results by Evaluate stage, oldest first."""
    usage: dict[str, float]
    """Node hours, tokens by tier and the judge's bill of the whole run, over all its attempts."""
    dollars: float
    """What that costs at the prices of `spec.cost`."""


def write_results(folder: Path) -> list[Path]:
    """Write both files into a run's folder; neither where no Evaluate stage has ended."""
    storage = RunStorage(folder)
    evaluated = [report for report in storage.reports() if report.kind == "Evaluate" and report.evaluations]
    if not evaluated:
        return []
    request = read_request(folder)
    run = request.run
    usage = read_usage(folder)
    results = Results(
        run=run.metadata.name,
        model=_evaluated(request, folder),
        stages={report.stage: list(_priced(report, run.spec.cost)) for report in evaluated},
        usage=asdict(usage),
        dollars=dollars(usage, run.spec.cost),
    )
    rows = [row for report in evaluated for row in _rows(report, storage)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=TRIALS_SCHEMA), buffer, compression="zstd")
    written = {
        folder / RESULTS_FILE: results.model_dump_json(by_alias=True, exclude_none=True, indent=2).encode(),
        folder / TRIALS_FILE: buffer.getvalue(),
    }
    for path, content in written.items():
        write_atomic(path, content)
    return list(written)


def read_usage(folder: Path) -> Usage:
    """What a run has used up, over all its attempts; nothing where that was never written."""
    path = folder / USAGE_FILE
    return Usage(**json.loads(path.read_bytes())) if path.exists() else Usage()


def _priced(report: StageReport, prices: CostSpec) -> Iterator[SettingResult]:
    for result in report.evaluations:
        use = result.tokens or TokenUse(harness=result.harness)
        yield SettingResult(**result.model_dump(), dollars=TokenLine(report.stage, use, prices).dollars)


def _evaluated(request: DriverRequest, folder: Path) -> Source:
    source = request.run.spec.model.source
    if source.path is None:
        return source
    path = request.base_dir / source.path
    if path.parent == folder:  # links to a checkpoint's files
        path = (path / "config.json").resolve().parent
    return Source(path=str(path))


def _rows(report: StageReport, storage: RunStorage) -> Iterator[dict[str, Any]]:
    results = {result.purpose: result for result in report.evaluations}
    for trajectory in storage.trajectories(report.stage):
        if result := results.get(trajectory.purpose):
            yield _row(report.stage, result, trajectory)


def _row(stage: str, result: EvaluationResult, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "stage": stage,
        "task_set": result.task_set,
        "harness": result.harness,
        "temperature": result.sampling and result.sampling.temperature,
        "top_p": result.sampling and result.sampling.top_p,
        "weight_version": trajectory.start_version,
        "task": trajectory.task,
        "domain": trajectory.domain,
        "trial_id": trajectory.trial_id,
        "outcome": trajectory.outcome.value,
        "is_infrastructure": trajectory.outcome.is_infrastructure,
        "detail": trajectory.detail,
        "reward": trajectory.reward,
        "passed": passed(trajectory),
        "wall_seconds": trajectory.wall_seconds,
        **behaviour([trajectory]),
    }
