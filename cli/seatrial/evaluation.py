"""`seatrial eval`: an RLRun of one Evaluate stage, made of a manifest and of what a person asks for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.rules import stored_form
from seatrial_api.spec.model import Source
from seatrial_trainer.driver.inputs import HELD_OUT

STAGE = "evaluate"
_SUFFIX = "-eval"
_MAX_NAME = 39


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be measured, and how."""

    tasks: Sequence[str] = ()
    """Task sets as `PATH` or `NAME=PATH`; the manifest's held-out and regression sets if empty."""
    harnesses: Sequence[str] = ()
    """Harnesses to measure with; the manifest's own if empty."""
    passes: int = 1
    temperatures: Sequence[float] = (1.0,)
    top_p: float = 1.0
    limit: int | None = None
    """Tasks of each set, in order of their names; all if empty."""


def evaluation_of(run: RLRun, model: Source, question: Question) -> RLRun:
    """The run that answers a question; nothing but evaluation is left of the manifest's stages and data.

    Args:
        run: The manifest's.
        model: What to evaluate.
        question: What to measure.

    Raises:
        InvalidInputError: if there is nothing to measure, or it cannot be measured so, saying what to change.
    """
    wanted = stored_form(run)
    spec = wanted["spec"]
    spec["model"]["source"] = stored_form(model)
    spec["data"] = _data(spec["data"], question)
    spec["stages"] = [{"name": STAGE, "evaluate": _stage(question)}]
    spec["storage"] = {"path": run.spec.storage.path} if run.spec.storage.path else {}
    wanted["metadata"]["name"] = run.metadata.name[: _MAX_NAME - len(_SUFFIX)].rstrip("-") + _SUFFIX
    wanted.pop("status", None)
    try:
        return RLRun.model_validate(wanted)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise InvalidInputError("\n".join(lines)) from error


def _stage(question: Question) -> dict[str, Any]:
    return {
        "checkpoint": "Initial",
        "passes": question.passes,
        "sampling": [{"temperature": one, "topP": question.top_p} for one in question.temperatures],
        "harnesses": list(question.harnesses),
    }


def _data(data: dict[str, Any], question: Question) -> dict[str, Any]:
    sets = [_named_set(one) for one in question.tasks] or [
        *([{"name": HELD_OUT, "tasks": data["heldOut"]}] if "heldOut" in data else []),
        *data.get("regression", []),
    ]
    if not sets:
        raise InvalidInputError("the manifest has neither data.heldOut nor data.regression; name tasks with --tasks")
    if question.limit is not None:
        sets = [one | {"tasks": one["tasks"] | {"limit": question.limit}} for one in sets]
    held_out = next(({"heldOut": one["tasks"]} for one in sets if one["name"] == HELD_OUT), {})
    return held_out | {"regression": [one for one in sets if one["name"] != HELD_OUT]}


def _named_set(text: str) -> dict[str, Any]:
    name, separator, path = text.rpartition("=")
    if not path:
        raise InvalidInputError(f"--tasks {text}: must be PATH or NAME=PATH")
    folder = Path(path).absolute()
    if not folder.exists():
        raise InvalidInputError(f"--tasks {text}: {folder} does not exist")
    name = name if separator else re.sub(r"[^a-z0-9]+", "-", folder.stem.lower()).strip("-")
    return {"name": name, "tasks": {"source": {"path": str(folder)}, "format": _format(folder)}}


def _format(path: Path) -> str:
    for suffix, name in ((".parquet", "Parquet"), (".jsonl", "Questions")):
        if path.suffix == suffix or any(path.glob(f"*{suffix}")):
            return name
    return "Directories"
