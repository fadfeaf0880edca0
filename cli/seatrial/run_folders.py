"""Where local runs live: `runs/<name>/<number>`, the highest number being the latest.

A run that is kept in S3 has the same name and number there, below `spec.storage.s3`; the folder is its working copy.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.local import read_progress
from seatrial.manifest import load_run
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.rules import stored_form, violations
from seatrial_api.spec.model import S3Source
from seatrial_api.status import RLRunStatus, StageStatus
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage, read_request

if TYPE_CHECKING:
    from seatrial_rollout.object_store.store import ObjectStore

_CLAIM = "claim"


def runs_folder(run: RLRun) -> Path:
    """Folder of all runs of a manifest."""
    return Path(run.spec.storage.path or "runs") / run.metadata.name


def kept_in(run: RLRun, folder: Path) -> S3Source | None:
    """Where the run of a folder is kept; none if in the folder itself."""
    s3 = run.spec.storage.s3
    return s3.below(f"{run.metadata.name}/{folder.name}") if s3 else None


def new_run_folder(run: RLRun) -> Path:
    """A folder of its own for a new run.

    Raises:
        InvalidInputError: if S3 refuses, saying what to change.
    """
    parent, store = runs_folder(run), _store(run)
    number = max([*map(_number, parent.glob("[0-9]*")), *_numbers(store)], default=0) + 1
    while store and not store.claim(f"{number:03d}/{_CLAIM}"):  # somebody else starts one just now
        number += 1
    folder = parent / f"{number:03d}"
    folder.mkdir(parents=True)
    return folder.absolute()


def latest_run_folder(run: RLRun) -> Path:
    """Folder of the newest run of a manifest; what S3 has of it is brought unless a driver works in the folder.

    Raises:
        InvalidInputError: if it never ran.
    """
    parent, store = runs_folder(run), _store(run)
    if store:
        started = [number for number in _numbers(store) if any(store.objects(f"{number:03d}/{REQUEST_FILE}"))]
        folders = [parent / f"{number:03d}" for number in started]
    else:
        folders = [path.parent for path in parent.glob(f"[0-9]*/{REQUEST_FILE}")]
    if not folders:
        where = store.uri() if store else parent
        raise InvalidInputError(f"{where}: there is no run of {run.metadata.name}; start one with `seatrial run`")
    folder = max(folders, key=_number).absolute()
    if store and read_progress(folder) is None:
        RunStorage.open(folder, kept_in(run, folder)).files.refresh()
    return folder


def looked_at(manifest: Path, folder: Path | None) -> Path:
    """Folder of the run that a command is to show: the one that was named, else that of the manifest's latest run.

    Raises:
        InvalidInputError: if it holds no run.
    """
    if folder is None:
        return latest_run_folder(load_run(manifest, []))
    read_request(folder)
    return folder


def evaluation_folder(run: RLRun, out: Path | None, *, resume: bool) -> Path:
    """Folder of an evaluation, made if it is a new one.

    Args:
        run: The evaluation.
        out: The folder that was asked for; one below the folder of runs if none.
        resume: Whether to go on with what is there.

    Raises:
        InvalidInputError: if there is nothing to go on with, or something is there already.
    """
    if out is None:
        return latest_run_folder(run) if resume else new_run_folder(run)
    if resume and not (out / REQUEST_FILE).exists():
        raise InvalidInputError(f"--out {out}: no evaluation was begun there; start it without --resume")
    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"--out {out} is a file; name a folder")
    if not resume and out.exists() and any(out.iterdir()):
        raise InvalidInputError(f"--out {out} is not empty; go on with what is there by --resume, or choose another")
    out.mkdir(parents=True, exist_ok=True)
    return out.absolute()


def check_resumable(folder: Path, run: RLRun) -> None:
    """Refuse to go on with a run under a spec that would make what is stored meaningless.

    The rules are those of the API server for a change of a running RLRun: a stage that has begun stays as it is.

    Raises:
        InvalidInputError: naming every field that may not change, or the driver that still works in the folder.
    """
    if read_progress(folder) is not None:
        raise InvalidInputError(f"{folder}: a driver still works on this run; stop it, or wait for its end")
    before = read_request(folder).run
    storage = RunStorage(folder)
    begun = [StageStatus(name=stage.name) for stage in before.spec.stages if storage.stage(stage.name).has_begun]
    if broken := list(violations(run.model_copy(update={"status": RLRunStatus(stages=begun)}), before)):
        lines = [f"  {violation.path}: {violation.message}" for violation in broken]
        lines += [f"  {change}" for change in _changes(stored_form(before), stored_form(run))]
        sentences = "\n".join(lines)
        raise InvalidInputError(
            f"{folder} cannot go on under this manifest; start a new run without --resume:\n{sentences}"
        )


def _changes(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """A line for every field that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _changes(before.get(key), now.get(key), f"{path}.{key}")
    elif before != now:
        yield f"{path}: {json.dumps(before)} before, {json.dumps(now)} now"


def _store(run: RLRun) -> "ObjectStore | None":
    """What keeps all runs of a manifest, if S3 does."""
    s3 = run.spec.storage.s3
    if s3 is None:
        return None
    from seatrial_rollout.object_store.store import ObjectStore  # noqa: PLC0415  boto3, which few need

    return ObjectStore.of(s3.below(run.metadata.name))


def _numbers(store: "ObjectStore | None") -> list[int]:
    return [int(name) for name in store.folders() if name.isdigit()] if store else []


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdigit() else 0
