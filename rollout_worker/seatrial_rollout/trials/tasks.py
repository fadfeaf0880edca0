"""Task sets: found, unpacked and checked before a run spends anything on them."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import override

from pydantic import ValidationError

from seatrial_api.errors import InvalidInputError
from seatrial_api.pods import pvc_folder
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import Source
from seatrial_rollout.judge.rubric import RUBRIC_FILE, read_rubric
from seatrial_rollout.trials.archipelago_task import (
    ARCHIPELAGO_FILE,
    ArchipelagoTask,
    check_grader,
    read_archipelago,
    world_of,
)
from seatrial_rollout.trials.questions import write_questions
from seatrial_rollout.trials.shards import unpack_shards

_MARKERS = ("instruction.md", "task.toml", "tests", ARCHIPELAGO_FILE)
_ABOUT = frozenset({"task.toml", ARCHIPELAGO_FILE})
"""Files that name a task and are no part of its question."""
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_WORLD_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SHOWN_PROBLEMS = 20
DEFAULT_DOMAIN = "default"
"""Domain of a task whose `task.toml` names none."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task that has been checked and can be tried."""

    name: str
    """Path of the task inside its set; unique there."""
    path: Path
    """The Harbor task directory."""
    domain: str
    """`metadata.domain` of its `task.toml`, else that of its world in `archipelago.json`."""
    digest: str
    """SHA-256 over every file of the task."""
    content_digest: str
    """SHA-256 over all but `task.toml` and `archipelago.json`: equal for one question under two names."""
    has_solution: bool
    """Whether `solution/solve.sh` exists, so that the oracle can try it."""
    world: str = ""
    """`metadata.world` of its `task.toml`, else that of `archipelago.json`; empty if that is the run's to say."""
    archipelago: ArchipelagoTask | None = None
    """What `archipelago.json` says of it; None for a task without."""


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """What is wrong with one task, and the way out."""

    task: str
    found: str
    remedy: str

    @override
    def __str__(self) -> str:
        return f"{self.task}: {self.found}; {self.remedy}"


def load_task_set(task_set: TaskSet, base_dir: Path, cache_dir: Path) -> list[TaskRef]:
    """Find and check the tasks of a set, in order of their names.

    Args:
        task_set: Source, format and limit.
        base_dir: Folder that a relative path starts from: the manifest's.
        cache_dir: Where parquet shards are unpacked, and sets from S3 are brought; kept between runs.

    Raises:
        InvalidInputError: if there is no task, or with every task that cannot be used.
        StoreUnavailableError: if S3 does not answer.
    """
    checked = check_task_set(task_set, base_dir, cache_dir)
    problems = [item for item in checked if isinstance(item, TaskProblem)]
    if problems:
        raise InvalidInputError(_describe(problems, len(checked), _locate(task_set.source, base_dir, cache_dir)))
    return [item for item in checked if isinstance(item, TaskRef)]


def check_task_set(task_set: TaskSet, base_dir: Path, cache_dir: Path) -> list[TaskRef | TaskProblem]:
    """As `load_task_set`, with a task's problem in the place of one that cannot be used.

    Raises:
        InvalidInputError: if there is no task.
        StoreUnavailableError: if S3 does not answer.
    """
    root = _locate(task_set.source, base_dir, cache_dir)
    found = _find(root, task_set, cache_dir / "tasks")
    if not found:
        what = {
            "Directories": "a task is a folder with instruction.md, task.toml and tests/test.sh",
            "Parquet": "a task is a row of a .parquet file",
            "Questions": "a task is a line of a .jsonl file",
        }
        raise InvalidInputError(f"{root} holds no task: {what[task_set.format]}")
    return [_check(name, path) if isinstance(path, Path) else _as_problem(name, path) for name, path in found.items()]


def _find(root: Path, task_set: TaskSet, cache_dir: Path) -> Mapping[str, Path | InvalidInputError]:
    """Folders of the set's tasks by name, or what is wrong with one."""
    match task_set.format:
        case "Parquet":
            return unpack_shards(root, cache_dir, task_set.limit)
        case "Questions":
            return write_questions(root, cache_dir, task_set.limit)
        case "Directories":
            return dict(sorted(_find_directories(root))[: task_set.limit])


def check_disjoint(sets: Mapping[str, Iterable[TaskRef]]) -> None:
    """Refuse a task that stands in two sets, under whatever name.

    Args:
        sets: Tasks by the name of their set: `train`, `validation`, `heldOut` and so on.

    Raises:
        InvalidInputError: with every pair of equal tasks in different sets.
    """
    owners: dict[str, tuple[str, str]] = {}
    problems = []
    for set_name, tasks in sets.items():
        for task in tasks:
            owner, first = owners.setdefault(task.content_digest, (set_name, task.name))
            if owner != set_name:
                problems.append(
                    TaskProblem(
                        f"{set_name}/{task.name}",
                        f"is the same task as {owner}/{first}",
                        f"remove it from {set_name} or from {owner}",
                    )
                )
    if problems:
        raise InvalidInputError(_describe(problems, sum(1 for _ in owners), "data"))


def _describe(problems: list[TaskProblem], total: int, where: object) -> str:
    lines = [f"{len(problems)} of {total} tasks in {where} cannot be used:"]
    lines += [f"  {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"  and {len(problems) - _SHOWN_PROBLEMS} more")
    return "\n".join(lines)


def _locate(source: Source, base_dir: Path, cache_dir: Path) -> Path:
    if source.path is not None:
        return _existing(base_dir / source.path, "path")
    if source.pvc is not None:
        return _existing(Path(pvc_folder(source.pvc.claim, source.pvc.path)), "pvc")
    if source.s3 is not None:
        from seatrial_rollout.object_store.source import fetch_source  # noqa: PLC0415  boto3, which few need

        return fetch_source(source.s3, cache_dir)
    if source.hf is not None:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  slow to import, seldom needed
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

        try:
            return Path(snapshot_download(source.hf.repo, revision=source.hf.revision, repo_type="dataset"))
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as exc:
            raise InvalidInputError(f"cannot fetch the task set {source.hf.repo}@{source.hf.revision}: {exc}") from exc
    raise InvalidInputError("a task set's source is empty; set path, hf, s3 or pvc")


def _existing(root: Path, field: str) -> Path:
    if not root.exists():
        raise InvalidInputError(f"the task set's source.{field} {root} does not exist; correct it or create the tasks")
    return root


def _find_directories(root: Path) -> Iterator[tuple[str, Path]]:
    """Tasks below a folder, however deep; nothing inside a task is looked at."""
    for folder, children, files in os.walk(root):
        entries = {*children, *files}
        if any(marker in entries for marker in _MARKERS):
            children.clear()
            path = Path(folder)
            yield (path.relative_to(root).as_posix() if path != root else path.name), path
        children[:] = [child for child in children if not child.startswith(".")]


def _check(name: str, path: Path) -> TaskRef | TaskProblem:
    for file, what, remedy in (
        ("instruction.md", "the agent's task", "write what the agent has to do"),
        ("task.toml", "the configuration", 'start with: schema_version = "1.4"'),
    ):
        if not (path / file).is_file():
            return TaskProblem(name, f"has no {file}, {what}", remedy)
    if problem := _verifier_problem(name, path):
        return problem
    for link in _links(path / "tests", path / "solution"):
        if not link.resolve().is_relative_to(path.resolve()):
            return TaskProblem(name, f"{link.relative_to(path)} links out of the task", "put the file itself there")
    about = _read_metadata(name, path / "task.toml")
    if isinstance(about, TaskProblem):
        return about
    try:
        archipelago = read_archipelago(path)
        if archipelago and not (path / RUBRIC_FILE).exists():
            check_grader(path)
    except InvalidInputError as exc:
        return _as_problem(name, exc)
    digest, content_digest = _digests(path)
    return TaskRef(
        name=name,
        path=path,
        domain=str(about.get("domain") or (archipelago and archipelago.domain) or DEFAULT_DOMAIN),
        digest=digest,
        content_digest=content_digest,
        has_solution=(path / "solution/solve.sh").is_file(),
        world=world_of(about, archipelago),
        archipelago=archipelago,
    )


def _verifier_problem(name: str, path: Path) -> TaskProblem | None:
    """What is wrong with how a task is graded: by a script, or by a rubric."""
    has_script, rubric = (path / "tests/test.sh").is_file(), path / RUBRIC_FILE
    if not rubric.is_file():
        remedy = f"add a script that writes /logs/verifier/reward.json, or {RUBRIC_FILE}"
        return None if has_script else TaskProblem(name, "has no tests/test.sh, the verifier", remedy)
    if has_script:
        return TaskProblem(name, f"has tests/test.sh and {RUBRIC_FILE}", "grade by one and remove the other")
    try:
        read_rubric(rubric)
    except InvalidInputError as exc:
        return _as_problem(name, exc)
    return None


def _as_problem(name: str, error: InvalidInputError) -> TaskProblem:
    found, _, remedy = str(error).rpartition("; ")
    return TaskProblem(name, found, remedy)


def _read_metadata(name: str, config_path: Path) -> Mapping[str, object] | TaskProblem:
    from harbor.models.task.config import TaskConfig, TaskOS  # noqa: PLC0415  0.1 s that only loading tasks needs

    try:
        config = TaskConfig.model_validate_toml(config_path.read_text(encoding="utf-8"))
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return TaskProblem(name, f"task.toml: {place}: {first['msg']}", "correct this field")
    except (ValueError, OSError) as exc:
        return TaskProblem(name, f"task.toml: {exc}", "correct the file")
    if config.steps:
        return TaskProblem(name, "task.toml has [[steps]]", "only tasks with one instruction can be trained")
    if config.environment.os is not TaskOS.LINUX:
        return TaskProblem(name, f"environment.os is {config.environment.os.value}", "only linux can be sandboxed")
    servers = [server.name for server in config.environment.mcp_servers]
    for server in servers:
        if not _SERVER_NAME.fullmatch(server) or servers.count(server) > 1:
            remedy = "give each a name of its own from letters, digits, - and _"
            return TaskProblem(name, f"environment.mcp_servers: {server!r} is no unique name", remedy)
    about: Mapping[str, object] = config.metadata
    return _world_problem(name, about) or about


def _world_problem(name: str, about: Mapping[str, object]) -> TaskProblem | None:
    world = about.get("world", "any")
    if isinstance(world, str) and _WORLD_NAME.fullmatch(world):
        return None
    return TaskProblem(name, f"metadata.world is {world!r}", "name a WorldImage, or remove it")


def _links(*folders: Path) -> Iterator[Path]:
    for start in folders:
        for folder, children, files in os.walk(start):
            for entry in (*children, *files):
                if os.path.islink(os.path.join(folder, entry)):  # noqa: PTH114, PTH118  as below
                    yield Path(folder, entry)


def _digests(path: Path) -> tuple[str, str]:
    """Digests over names, executable bits and contents: of everything, and of all but what names the task."""
    everything, content = hashlib.sha256(), hashlib.sha256()
    for folder, children, files in os.walk(path):
        children.sort()
        links = [child for child in children if os.path.islink(os.path.join(folder, child))]  # noqa: PTH114, PTH118
        for entry in sorted(files + links):
            full = os.path.join(folder, entry)  # noqa: PTH118  a Path per file triples the time for a big set
            relative = os.path.relpath(full, path)
            line = f"{relative}\0{_entry_digest(full)}\0".encode()
            everything.update(line)
            if relative not in _ABOUT:
                content.update(line)
    return everything.hexdigest(), content.hexdigest()


def _entry_digest(path: str) -> str:
    if os.path.islink(path):  # noqa: PTH114
        return f"-> {os.readlink(path)}"  # noqa: PTH115
    with open(path, "rb") as file:  # noqa: PTH123
        executable = os.fstat(file.fileno()).st_mode & 0o100
        return f"{executable:o} {hashlib.file_digest(file, 'sha256').hexdigest()}"
