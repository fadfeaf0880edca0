"""The quickstart's tasks: what they are, and that their verifiers judge what they say."""

import random
import shutil
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
from make_tasks import SPLITS, write_tasks
from office.harbor import write_task
from office.kinds import KINDS, make_task
from office.task import Cell, Reply, Row, Task
from office.xlsx import xlsx_bytes
from openpyxl import load_workbook
from warm_start.clerk import FAULTLESS, work
from warm_start.desk import open_desk

from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import Source
from seatrial_rollout.trials.tasks import check_disjoint, load_task_set
from tests.unit.quickstart.conftest import Grade, run_script

EVERY_KIND = [(domain, kind) for domain, kinds in KINDS.items() for kind in kinds]


@cache
def tasks_of(domain: str, kind: str) -> list[Task]:
    """Some tasks of a kind, from seeds that no set uses."""
    tasks = (make_task(seed) for seed in range(50_000_000, 50_000_200))
    return [task for task in tasks if (task.domain, task.kind) == (domain, kind)]


def one_of(domain: str, kind: str, number: int = 0) -> Task:
    """The n-th of them."""
    return tasks_of(domain, kind)[number]


@pytest.fixture
def lay_out(tmp_path: Path) -> tuple[Path, Path]:
    """Folders for a task and for its workspace."""
    return tmp_path / "task", tmp_path / "workspace"


def set_up(task: Task, folders: tuple[Path, Path]) -> None:
    folder, workspace = folders
    write_task(task, folder)
    shutil.copytree(folder / "environment" / "files", workspace)


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_tasks_are_the_same_each_time(task_sets: Path, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    assert digests(tmp_path) == digests(task_sets)


def test_the_sets_are_as_large_as_announced_and_share_no_task(task_sets: Path, tmp_path: Path) -> None:
    sets = {
        name: load_task_set(TaskSet(source=Source(path=str(task_sets / name))), tmp_path, tmp_path) for name in SPLITS
    }
    assert {name: len(tasks) for name, tasks in sets.items()} == {name: count for name, (_, count) in SPLITS.items()}
    check_disjoint(sets)


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_every_set_has_all_kinds_and_both_domains_in_equal_parts(name: str) -> None:
    first, count = SPLITS[name]
    tasks = [make_task(first + number) for number in range(count)]
    assert {(task.domain, task.kind) for task in tasks} == set(EVERY_KIND)
    assert set(Counter(task.domain for task in tasks).values()) == {count // 2}


@pytest.mark.parametrize(("domain", "kind"), EVERY_KIND)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_solution_scores_one_and_doing_nothing_scores_zero(
    domain: str, kind: str, number: int, lay_out: tuple[Path, Path], grade: Grade, tmp_path: Path
) -> None:
    folder, workspace = lay_out
    set_up(one_of(domain, kind, number), lay_out)
    assert grade(folder, workspace)["reward"] == 0.0
    run_script(folder / "solution" / "solve.sh", workspace, tmp_path)
    assert grade(folder, workspace) == {"reward": 1.0, "value": 1, "place": 1}


@pytest.mark.parametrize(("domain", "kind"), EVERY_KIND)
async def test_a_faultless_clerk_solves_every_kind_with_the_real_tools(
    domain: str, kind: str, tmp_path: Path, grade: Grade
) -> None:
    async with open_desk(tmp_path / "workspace") as desk:
        for number in range(3):
            task = one_of(domain, kind, number)
            desk.furnish(task.office)
            await work(task, desk, random.Random(0), FAULTLESS)  # noqa: S311  no secret
            write_task(task, tmp_path / f"task-{number}")
            assert grade(tmp_path / f"task-{number}", tmp_path / "workspace")["reward"] == 1.0


@pytest.mark.parametrize(("domain", "kind"), [pair for pair in EVERY_KIND if pair[1] not in {"update", "append"}])
def test_an_answer_that_has_to_be_found_is_not_in_the_instruction(domain: str, kind: str) -> None:
    for task in tasks_of(domain, kind):
        assert isinstance(task.expected, Reply)
        assert task.expected.value not in [word.strip(".,:;?") for word in task.instruction.split()]


@pytest.mark.parametrize(
    ("at", "value", "reward"),
    [
        ("", "", 1.0),
        ("", " \n{right}\r\n\n", 1.0),
        ("outbox/other.txt", "", 0.3),
        ("other.txt", "", 0.3),
        ("a/b/c/other.txt", "", 0.3),
        ("", "wrong", 0.1),
        ("", "{right} {right}", 0.1),
        ("", "The answer is {right}.", 0.1),
        ("", "x" * 5_000_000, 0.1),
        ("outbox/other.txt", "wrong", 0.0),
        ("outbox/other.csv", "", 0.0),
    ],
)
def test_a_reply_is_graded_by_its_value_and_its_place(
    at: str, value: str, reward: float, lay_out: tuple[Path, Path], grade: Grade
) -> None:
    task = one_of("finance", "lookup")
    assert isinstance(task.expected, Reply)
    set_up(task, lay_out)
    path = lay_out[1] / (at or task.expected.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((value or "{right}").replace("{right}", task.expected.value))
    assert grade(*lay_out)["reward"] == reward


def test_a_link_to_the_answer_is_no_reply(lay_out: tuple[Path, Path], grade: Grade, tmp_path: Path) -> None:
    task = one_of("finance", "lookup")
    assert isinstance(task.expected, Reply)
    set_up(task, lay_out)
    (tmp_path / "answer").write_text(task.expected.value)
    (lay_out[1] / task.expected.path).symlink_to(tmp_path / "answer")
    assert grade(*lay_out)["reward"] == 0.0


def test_bytes_that_are_no_text_earn_nothing_but_the_place(lay_out: tuple[Path, Path], grade: Grade) -> None:
    task = one_of("operations", "find")
    assert isinstance(task.expected, Reply)
    set_up(task, lay_out)
    (lay_out[1] / task.expected.path).write_bytes(bytes(range(256)) * 10)
    assert grade(*lay_out)["reward"] == 0.1


def test_a_vanished_workspace_leaves_no_reward_to_read(lay_out: tuple[Path, Path], grade: Grade) -> None:
    set_up(one_of("finance", "update"), lay_out)
    shutil.rmtree(lay_out[1] / "finance")
    assert grade(*lay_out)["reward"] == 0.0


@pytest.mark.parametrize(
    ("row", "column", "value", "reward"),
    [("right", "right", "right", 1.0), ("other", "right", "right", 0.3), ("right", "right", "other", 0.1)],
)
def test_a_change_is_graded_by_its_value_and_its_cell(
    row: str, column: str, value: str, reward: float, lay_out: tuple[Path, Path], grade: Grade
) -> None:
    task = one_of("finance", "update")
    assert isinstance(task.expected, Cell)
    set_up(task, lay_out)
    wanted, sheet = task.expected, task.office.sheets[task.expected.path]
    others = [key for key in sheet.keys if sheet.cell(key, wanted.column) != wanted.value and key != wanted.row]
    change(
        lay_out[1] / wanted.path,
        wanted.row if row == "right" else others[0],
        sheet.header.index(wanted.column),
        wanted.value if value == "right" else "something",
    )
    assert grade(*lay_out)["reward"] == reward


def test_a_right_change_with_a_second_one_beside_it_earns_nothing(lay_out: tuple[Path, Path], grade: Grade) -> None:
    task = one_of("finance", "update")
    assert isinstance(task.expected, Cell)
    set_up(task, lay_out)
    wanted, sheet = task.expected, task.office.sheets[task.expected.path]
    change(lay_out[1] / wanted.path, wanted.row, sheet.header.index(wanted.column), wanted.value)
    change(lay_out[1] / wanted.path, wanted.row, 1, "Nobody")
    assert grade(*lay_out)["reward"] == 0.0


def change(path: Path, row: str, column: int, value: str) -> None:
    lines = [line.split(",") for line in path.read_text().splitlines()]
    for cells in lines:
        if cells[0] == row:
            cells[column] = value
    path.write_text("\r\n".join(",".join(cells) for cells in lines) + "\r\n")


@pytest.mark.parametrize(
    ("path", "rows", "reward"),
    [
        ("", ["{right}"], 1.0),
        ("finance/invoices.csv", ["{right}"], 0.3),
        ("", ["ORD-1,nothing,Nobody,0"], 0.1),
        ("", ["{right}", "{right}"], 0.0),
        ("finance/invoices.csv", ["a,b,c,d"], 0.0),
    ],
)
def test_a_new_row_is_graded_by_its_values_and_its_sheet(
    path: str, rows: list[str], reward: float, lay_out: tuple[Path, Path], grade: Grade
) -> None:
    task = one_of("operations", "append")
    assert isinstance(task.expected, Row)
    set_up(task, lay_out)
    with (lay_out[1] / (path or task.expected.path)).open("a") as sheet:
        sheet.writelines(row.replace("{right}", ",".join(task.expected.values)) + "\n" for row in rows)
    assert grade(*lay_out)["reward"] == reward


def test_workbooks_hold_the_sheet_and_open_in_other_programs(tmp_path: Path) -> None:
    (tmp_path / "book.xlsx").write_bytes(xlsx_bytes(["team", "budget"], [["R&D", "120"], ["sales", "007"]]))
    tab = load_workbook(tmp_path / "book.xlsx").active
    assert tab is not None
    assert list(tab.values) == [("team", "budget"), ("R&D", 120), ("sales", 7)]
