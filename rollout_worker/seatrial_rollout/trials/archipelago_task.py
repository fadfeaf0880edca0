"""Tasks of Archipelago's makers: Harbor directories that also say which world they belong to.

<task>/archipelago.json           task, world and its image
<task>/tests/verifiers.json       criteria, hidden from the agent
<task>/tests/golden_responses.json
<task>/tests/grade.py  <task>/tests/runner/   what `tests/test.sh` starts
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from seatrial_api.errors import InvalidInputError

ARCHIPELAGO_FILE = "archipelago.json"
"""In a task's folder."""
_VERIFIERS = Path("tests/verifiers.json")
_WORLD_SUFFIX = re.compile(r"-?world-?\d*$")
_Text = Annotated[str, Field(min_length=1)]


class ArchipelagoTask(BaseModel):
    """`archipelago.json`, as far as it matters here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    task_slug: _Text
    """Name of the task."""
    world_id: _Text
    """Id of the world that it is tried in."""
    world_short_name: str = ""
    """Name of the world: `law-world-433`."""
    ecr_image: str | None = None
    """Image of the world."""
    required_env_keys: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(default_factory=list)
    """Environment variables of keys that the world's servers want; without one they serve what they have stored."""
    needs_snapshot: bool = False
    """Whether its grader compares snapshots of documents."""

    @property
    def world(self) -> str:
        """The WorldImage that it is tried in: the world's name in what a Kubernetes name may hold."""
        name = re.sub(r"[^a-z0-9]+", "-", (self.world_short_name or self.world_id).lower())
        return name[:63].strip("-")

    @property
    def domain(self) -> str:
        """Kind of company, from the world's name: `law`; empty if it has none."""
        return _WORLD_SUFFIX.sub("", self.world_short_name)


class _Verifier(BaseModel):
    verifier_id: _Text
    verifier_values: dict[str, Any]


def read_archipelago(task: Path) -> ArchipelagoTask | None:
    """What a task's folder says about its world; None for a task of another make.

    Raises:
        InvalidInputError: if it cannot be used, as `found; remedy`.
    """
    file = task / ARCHIPELAGO_FILE
    if not file.exists():
        return None
    try:
        return ArchipelagoTask.model_validate_json(file.read_bytes())
    except ValidationError as exc:
        raise InvalidInputError(f"{ARCHIPELAGO_FILE}: {_first(exc)}; correct this field") from exc
    except OSError as exc:
        raise InvalidInputError(f"{ARCHIPELAGO_FILE} cannot be read: {exc}; make it a file") from exc


def world_of(metadata: Mapping[str, object], archipelago: ArchipelagoTask | None) -> str:
    """WorldImage that a task names: in `task.toml`, else in `archipelago.json`; empty if in neither."""
    return str(metadata.get("world") or (archipelago.world if archipelago else ""))


def check_grader(task: Path) -> None:
    """Refuse a task whose criteria or grader are not whole: its script would fail on every trial.

    Raises:
        InvalidInputError: as `found; remedy`.
    """
    for name, is_there in (("tests/grade.py", Path.is_file), ("tests/runner", Path.is_dir)):
        if not is_there(task / name):
            raise InvalidInputError(f"has {ARCHIPELAGO_FILE} and no {name}, its grader; export the task again")
    try:
        verifiers = TypeAdapter(list[_Verifier]).validate_json((task / _VERIFIERS).read_bytes())
    except ValidationError as exc:
        raise InvalidInputError(f"{_VERIFIERS}: {_first(exc)}; correct this field") from exc
    except OSError as exc:
        raise InvalidInputError(f"has {ARCHIPELAGO_FILE} and no {_VERIFIERS}, its criteria; export it again") from exc
    names = [one.verifier_id for one in verifiers]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(f"{_VERIFIERS}: {', '.join(doubled)} comes twice; give each an id of its own")
    if not names:
        raise InvalidInputError(f"{_VERIFIERS} is empty, so that nothing is graded; add a criterion")


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
