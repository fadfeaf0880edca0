"""One evaluation held against another, task by task, from their `trials.parquet`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from seatrial_api.errors import InvalidInputError
from seatrial_api.stage_report import Estimate
from seatrial_trainer.evaluation.statistics import estimate_gain, estimate_share
from seatrial_trainer.storage.run_storage import TRIALS_FILE

_SETTING_COLUMNS = ("task_set", "harness", "temperature", "top_p")
_COLUMNS = ("stage", *_SETTING_COLUMNS, "task", "passed", "is_infrastructure")
type _Setting = tuple[str, str, float, float]
type _Tries = dict[_Setting, dict[str, list[float]]]
"""1 or 0 for each graded try, by setting and task."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one setting gave before and after: pass@1."""

    name: str
    """Task set and sampling: `held-out T=1`."""
    harness: str
    before: Estimate
    after: Estimate
    gain: Estimate | None
    """Paired, over the tasks that both measured; None where that was not estimated."""


def changes(before: Path, after: Path) -> list[Change]:
    """Every setting that both folders' newest evaluations measured on some common task.

    Args:
        before: Folder of an evaluation, or of a run that evaluated.
        after: Another one.

    Raises:
        InvalidInputError: if a folder has no results, or nothing was measured in both.
    """
    first, second = _read(before), _read(after)
    found = [
        _change(setting, first[setting], tries) for setting, tries in second.items() if _share(first, setting, tries)
    ]
    if not found:
        raise InvalidInputError(f"{before} and {after} measured no task in the same way; evaluate both alike")
    return found


def _share(first: _Tries, setting: _Setting, tries: Mapping[str, list[float]]) -> bool:
    return setting in first and bool(first[setting].keys() & tries.keys())


def _change(setting: _Setting, before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> Change:
    """Over the tasks that both measured."""
    shared = sorted(before.keys() & after.keys())
    return Change(
        name=_name(setting),
        harness=setting[1],
        before=estimate_share([before[task] for task in shared]),
        after=estimate_share([after[task] for task in shared]),
        gain=estimate_gain(before, after),
    )


def trials_of(folder: Path) -> Path:
    """The trials of an evaluation's folder.

    Raises:
        InvalidInputError: if there are none.
    """
    path = folder / TRIALS_FILE
    if not path.exists():
        raise InvalidInputError(f"{folder} has no {TRIALS_FILE}: no evaluation ended there")
    return path


def _name(setting: _Setting) -> str:
    task_set, _, temperature, _ = setting
    return f"{task_set} greedy" if temperature == 0 else f"{task_set} T={temperature:g}"


def _read(folder: Path) -> _Tries:
    """Of the newest stage that evaluated."""
    rows = pq.read_table(trials_of(folder), columns=list(_COLUMNS)).to_pylist()
    tries: _Tries = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["stage"] == rows[-1]["stage"] and not row["is_infrastructure"]:
            task_set, harness, temperature, top_p = (row[name] for name in _SETTING_COLUMNS)
            tries[task_set, harness, temperature, top_p][row["task"]].append(float(row["passed"]))
    return tries
