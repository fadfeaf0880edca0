"""`seatrial data inspect`: what a run's task sets hold, and what is wrong with them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial_api.rlrun import RLRun
from seatrial_api.spec.data import TaskSet
from seatrial_rollout.inspection.contamination import find_contamination
from seatrial_rollout.trials.tasks import TaskProblem, TaskRef, check_task_set
from seatrial_trainer.driver.inputs import CACHE

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class SetSummary:
    """One task set."""

    name: str
    """`train`, `validation`, `heldOut`, or a regression set's own name."""
    tasks: Sequence[TaskRef]
    problems: Sequence[TaskProblem]
    """One for each task that cannot be used."""
    sizes: Mapping[str, int]
    """Bytes of all files by task."""

    @property
    def domains(self) -> Counter[str]:
        """Tasks by domain."""
        return Counter(task.domain for task in self.tasks)

    @property
    def without_solution(self) -> int:
        """Tasks that Preflight cannot prove solvable."""
        return sum(not task.has_solution for task in self.tasks)


def summarize_data(run: RLRun, base_dir: Path) -> list[SetSummary]:
    """Every task set of a run, with what is wrong in place of an error.

    Args:
        run: The run.
        base_dir: Folder that relative paths start at.

    Raises:
        InvalidInputError: if a set cannot be found, or holds no task.
    """
    return [_summarize(name, tasks, base_dir) for name, tasks in _sets(run)]


def duplicates(summaries: Sequence[SetSummary]) -> list[list[str]]:
    """Tasks that are one and the same but for `task.toml`, as `set/task`; a held-out task in training is no test."""
    by_content: dict[str, list[str]] = defaultdict(list)
    for summary in summaries:
        for task in summary.tasks:
            by_content[task.content_digest].append(f"{summary.name}/{task.name}")
    return [names for names in by_content.values() if len(names) > 1]


def contaminated(summaries: Sequence[SetSummary], num_words: int) -> list[str]:
    """Training tasks whose instruction shares a run of words with a task that something is measured on.

    Args:
        summaries: The sets; the first one named `train` is what is trained.
        num_words: Length of a run.
    """
    texts = {one.name: {task.name: _instruction(task) for task in one.tasks} for one in summaries}
    trained = texts.pop("train", {})
    measured = ((f"{name}/{task}", text) for name, tasks in texts.items() for task, text in tasks.items())
    found = find_contamination(trained, measured, num_words)
    return [f'train/{task} and {other}: "{words}"' for task, (other, words) in sorted(found.items())]


def print_data(summaries: Sequence[SetSummary], console: Console, shared: Sequence[str] = ()) -> None:
    """A line for each set, then problems, duplicates, and what `contaminated` found."""
    table = Table()
    for name in ("set", "tasks", "unusable", "no solution", "size", "largest", "domains"):
        table.add_column(name, justify="left" if name in {"set", "domains"} else "right")
    for one in summaries:
        domains = "\n".join(f"{domain} {count}" for domain, count in one.domains.most_common())
        size, largest = sum(one.sizes.values()), max(one.sizes.values(), default=0)
        figures = (len(one.tasks), len(one.problems), one.without_solution, _bytes(size), _bytes(largest))
        table.add_row(one.name, *map(str, figures), Text(domains))
    console.print(table)
    if worlds := _worlds(summaries):
        console.print(worlds)
    _print_list(
        "tasks that cannot be used", [f"{one.name}/{bad}" for one in summaries for bad in one.problems], console
    )
    _print_list("tasks that are the same", [" = ".join(names) for names in duplicates(summaries)], console)
    _print_list("training tasks that share words with others", shared, console)


def _worlds(summaries: Sequence[SetSummary]) -> Table | None:
    """The WorldImages that tasks name, with what their `archipelago.json` says of them; None if no task names one."""
    by_world: dict[str, list[TaskRef]] = defaultdict(list)
    for summary in summaries:
        for task in summary.tasks:
            by_world[task.world].append(task)
    by_world.pop("", None)
    if not by_world:
        return None
    table = Table()
    for name in ("world", "tasks", "image", "keys it wants", "by snapshots"):
        table.add_column(name, justify="right" if name in {"tasks", "by snapshots"} else "left")
    for world, tasks in sorted(by_world.items()):
        told = [task.archipelago for task in tasks if task.archipelago]
        images = sorted({one.ecr_image for one in told if one.ecr_image})
        keys = sorted({key for one in told for key in one.required_env_keys})
        by_snapshots = sum(one.needs_snapshot for one in told)
        table.add_row(world, str(len(tasks)), Text("\n".join(images)), Text(" ".join(keys)), str(by_snapshots))
    return table


def _print_list(title: str, lines: Sequence[str], console: Console) -> None:
    if lines:
        console.print(f"\n{len(lines)} {title}:")
        for line in lines[:_SHOWN]:
            console.print(Text(f"  {line}"), soft_wrap=True)
        if len(lines) > _SHOWN:
            console.print(f"  and {len(lines) - _SHOWN} more")


def _sets(run: RLRun) -> Iterator[tuple[str, TaskSet]]:
    data = run.spec.data
    named = {"train": data.train, "validation": data.validation, "heldOut": data.held_out}
    yield from ((name, tasks) for name, tasks in named.items() if tasks is not None)
    yield from ((one.name, one.tasks) for one in data.regression)


def _summarize(name: str, tasks: TaskSet, base_dir: Path) -> SetSummary:
    checked = check_task_set(tasks, base_dir, base_dir / CACHE)
    usable = [one for one in checked if isinstance(one, TaskRef)]
    problems = [one for one in checked if isinstance(one, TaskProblem)]
    return SetSummary(name, usable, problems, {task.name: _size(task.path) for task in usable})


def _instruction(task: TaskRef) -> str:
    return (task.path / "instruction.md").read_text(encoding="utf-8", errors="replace")


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
