"""A world's inspection from its spec to its report: the same on a laptop and in a cluster."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from seatrial_api.inspection_request import REPORT_NAME
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.world_image import Inspection
from seatrial_rollout.inspection.faults import InspectionReport
from seatrial_rollout.inspection.inspector import Inspector, Questions
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_rollout.trials.tasks import load_task_set

_CACHE = Path(".cache")


async def inspect_world(
    world: str, inspection: Inspection, base_dir: Path, num_trials: int, sandbox: SandboxSpec
) -> InspectionReport:
    """Inspect a world's tasks.

    Args:
        world: Name of the world.
        inspection: What it must prove.
        base_dir: Folder that relative paths start at.
        num_trials: Trials at once.
        sandbox: Where they run.

    Raises:
        InvalidInputError: if a task or a corpus cannot be used.
        TransientError: if no trial can be run now.
    """
    tasks = load_task_set(inspection.tasks, base_dir, base_dir / _CACHE)
    corpora = [text for corpus in inspection.corpora for text in _texts(corpus, base_dir)]
    questions = Questions(inspection.repeats, inspection.contamination_ngram, corpora)
    host = TrialHost(HostConfig(sandbox=sandbox, num_trials=num_trials))
    try:
        await host.start()
        return await Inspector(world, host, sandbox, num_trials, questions).inspect(tasks)
    finally:
        await host.stop()


def write_report(report: InspectionReport, folder: Path) -> tuple[Path, Path]:
    """Leave a report as Markdown and as JSON; the paths of both."""
    folder.mkdir(parents=True, exist_ok=True)
    text, data = folder / f"{REPORT_NAME}.md", folder / f"{REPORT_NAME}.json"
    text.write_text(report.text(), encoding="utf-8")
    data.write_text(json.dumps(asdict(report), indent=2), encoding="utf-8")
    return text, data


def _texts(corpus: TaskSet, base_dir: Path) -> Iterator[tuple[str, str]]:
    """Instructions of a task set."""
    for task in load_task_set(corpus, base_dir, base_dir / _CACHE):
        yield task.name, (task.path / "instruction.md").read_text(encoding="utf-8")
