"""`report.html`: one self-contained page that shows what a run did."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from tokenizers import Tokenizer

from seatrial_api.driver_request import DriverRequest
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.model_files import find_model
from seatrial_trainer.evaluation.summary import passed
from seatrial_trainer.reporting import evaluations
from seatrial_trainer.reporting.arms import arm_charts
from seatrial_trainer.reporting.charts import charts
from seatrial_trainer.reporting.failures import summarize_findings, summarize_outcomes, summarize_tools
from seatrial_trainer.reporting.symptoms import find_symptoms
from seatrial_trainer.reporting.token_costs import token_lines
from seatrial_trainer.reporting.token_view import SequenceView, view_sequences
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.run_storage import REPORT_FILE, RunStorage, read_request


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """One trajectory as the page shows it."""

    trajectory: Trajectory
    sequences: list[SequenceView]


def write_report(folder: Path, base_dir: Path | None = None) -> Path:
    """Write the report of a run's folder, whatever state the run is in.

    Args:
        folder: The run's folder.
        base_dir: Folder that relative paths start at; what the run was started with, maybe on another machine, if none.

    Raises:
        InvalidInputError: if the folder holds no run, or the run's model is gone.
    """
    request = read_request(folder)
    if base_dir is not None:
        request = request.model_copy(update={"base_dir": base_dir})
    storage = RunStorage(folder)
    trajectories = list(storage.trajectories())
    reports = list(storage.reports())
    measured = evaluations.lines(reports)
    page = _template().render(
        run=request.run,
        reports=reports,
        evaluations=measured,
        costs=partial(evaluations.costs, prices=request.run.spec.cost),
        transfer=evaluations.transfer(measured, request.run.spec.harness.name),
        charts=[json.dumps(spec) for spec in _all_charts(request, storage, trajectories)],
        bundle=_javascript(),
        outcomes=summarize_outcomes(trajectories),
        suspicions=find_symptoms(trajectories),
        tools=summarize_tools(trajectories),
        findings=summarize_findings(trajectories),
        tokens=token_lines(reports, request.run.spec.cost),
        num_trajectories=len(trajectories),
        shown=_show(request, storage, trajectories),
    )
    path = folder / REPORT_FILE
    write_atomic(path, page.encode())
    return path


def choose(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Trajectories worth a look: of every outcome and stage some, spread over the run.

    Failures of infrastructure come first, then trials in which tools failed, then an even spread over the rest.
    """
    failed = [one for one in trajectories if one.outcome.is_infrastructure][: count // 4]
    with_errors = [one for one in trajectories if one.num_failed_tool_calls and one not in failed]
    with_errors = _spread(with_errors, count // 4)
    taken = {one.trial_id for one in [*failed, *with_errors]}
    rest = [one for one in trajectories if one.trial_id not in taken and one.sequences]
    return [*failed, *with_errors, *_spread(rest, count - len(taken))]


def _spread[T](items: Sequence[T], count: int) -> list[T]:
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _show(request: DriverRequest, storage: RunStorage, trajectories: Sequence[Trajectory]) -> list[TrajectoryView]:
    compared = storage.comparisons()
    count = request.run.spec.report.trajectories
    # Half of those shown were compared with the trainer, so that differences are seen.
    of_interest = [one for one in trajectories if one.trial_id in compared]
    chosen = _spread(of_interest, count // 2)
    ids = {one.trial_id for one in chosen}
    chosen += choose([one for one in trajectories if one.trial_id not in ids and one.sequences], count - len(chosen))
    if not chosen:
        return []
    tokenizer = Tokenizer.from_file(str(find_model(request.run.spec.model.source, request.base_dir) / "tokenizer.json"))
    return [TrajectoryView(one, view_sequences(one, tokenizer, compared)) for one in chosen]


def _all_charts(
    request: DriverRequest, storage: RunStorage, trajectories: Sequence[Trajectory]
) -> list[dict[str, Any]]:
    validations: dict[int, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.purpose == "validation" and not trajectory.outcome.is_infrastructure:
            validations[trajectory.start_version].append(passed(trajectory))
    pass_rates = {version: fmean(results) for version, results in sorted(validations.items())}
    specs = [spec for report in storage.reports() if report.arms for spec in arm_charts(report, storage)]
    for stage in request.run.spec.stages:
        if stage.kind not in {"Train", "Overfit"}:
            continue
        if steps := storage.stage(stage.name).read_steps():
            specs += charts(steps, pass_rates if stage.kind == "Train" else {})
    return specs


def _javascript() -> str:
    from vl_convert import javascript_bundle  # noqa: PLC0415  a second of CPU that only a report pays

    bundle = javascript_bundle()  # type: ignore[call-arg]  # the stub makes its optional argument required
    return bundle.replace("</script", "<\\/script")


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("seatrial_trainer.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
