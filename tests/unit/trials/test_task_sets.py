"""Task sets are checked whole before anything is spent on them."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.data import TaskSet
from seatrial_rollout.trials.tasks import check_disjoint, load_task_set

CONFIG = """
schema_version = "1.4"
[metadata]
domain = "office"
[[environment.mcp_servers]]
name = "filesystem"
transport = "stdio"
command = "seatrial-mcp"
args = ["filesystem"]
"""
FILES = {
    "instruction.md": "Count the invoices.\n",
    "task.toml": CONFIG,
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "environment/files/invoices.csv": "number\n1\n2\n",
}


def write_task(folder: Path, files: Mapping[str, str | None] = {}) -> Path:
    """A good task, except for `files`: other content, or none."""
    for name, content in {**FILES, **files}.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    return folder


def directories(**changes: Any) -> TaskSet:
    return TaskSet.model_validate({"source": {"path": "tasks"}, **changes})


def test_tasks_come_in_order_of_their_names_with_what_a_run_needs_to_know(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/b", {"instruction.md": "b", "solution/solve.sh": "true"})
    write_task(tmp_path / "tasks/deep/er/a", {"instruction.md": "a"})
    (tmp_path / "tasks/README.md").write_text("not a task")
    (tmp_path / "tasks/.git/tests").mkdir(parents=True)
    tasks = load_task_set(directories(), tmp_path, tmp_path / "cache")
    assert [task.name for task in tasks] == ["b", "deep/er/a"]
    assert [task.domain for task in tasks] == ["office", "office"]
    assert [task.has_solution for task in tasks] == [True, False]
    assert tasks[1].path == tmp_path / "tasks/deep/er/a"


def test_a_limit_takes_the_first_tasks_by_name(tmp_path: Path) -> None:
    for name in "dbca":
        write_task(tmp_path / "tasks" / name)
    assert [task.name for task in load_task_set(directories(limit=2), tmp_path, tmp_path)] == ["a", "b"]


def test_a_task_without_domain_belongs_to_the_default_one(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", {"task.toml": 'schema_version = "1.4"'})
    (task,) = load_task_set(directories(), tmp_path, tmp_path)
    assert (task.domain, task.world) == ("default", "")


def test_a_task_may_name_its_world(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", {"task.toml": 'schema_version = "1.4"\n[metadata]\nworld = "acme"'})
    (task,) = load_task_set(directories(), tmp_path, tmp_path)
    assert task.world == "acme"


def test_every_bad_task_is_reported_at_once_with_the_way_out(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/good")
    write_task(tmp_path / "tasks/no-verifier", {"tests/test.sh": None})
    write_task(tmp_path / "tasks/no-instruction", {"instruction.md": None})
    write_task(tmp_path / "tasks/no-config", {"task.toml": None})
    write_task(tmp_path / "tasks/broken-toml", {"task.toml": "schema_version = "})
    write_task(tmp_path / "tasks/wrong-field", {"task.toml": "[verifier]\ntimeout_sec = 'soon'"})
    write_task(tmp_path / "tasks/nameless-server", {"task.toml": CONFIG.replace('name = "filesystem"', 'name = ""')})
    write_task(tmp_path / "tasks/same-server", {"task.toml": CONFIG + CONFIG.partition('office"\n')[2]})
    write_task(tmp_path / "tasks/steps", {"task.toml": "[[steps]]\nname = 'one'"})
    with pytest.raises(InvalidInputError) as caught:
        load_task_set(directories(), tmp_path, tmp_path)
    message = str(caught.value)
    assert "8 of 9 tasks" in message
    assert (
        "no-verifier: has no tests/test.sh, the verifier; add a script that writes /logs/verifier/reward.json"
        in message
    )
    assert "no-instruction: has no instruction.md" in message
    assert "no-config: has no task.toml" in message
    assert "broken-toml: task.toml: Invalid value (at end of document)" in message
    assert "wrong-field: task.toml: verifier.timeout_sec: Input should be a valid number" in message
    assert "nameless-server: environment.mcp_servers: '' is no unique name" in message
    assert "same-server: environment.mcp_servers: 'filesystem' is no unique name" in message
    assert "steps: task.toml has [[steps]]" in message


def test_a_long_list_of_bad_tasks_is_cut(tmp_path: Path) -> None:
    for number in range(30):
        write_task(tmp_path / f"tasks/{number:02}", {"tests/test.sh": None})
    with pytest.raises(InvalidInputError) as caught:
        load_task_set(directories(), tmp_path, tmp_path)
    assert "19: has no" in str(caught.value)
    assert "and 10 more" in str(caught.value)


@pytest.mark.parametrize(("make", "complaint"), [(False, "does not exist"), (True, "holds no task")])
def test_a_set_without_tasks_is_refused(tmp_path: Path, make: bool, complaint: str) -> None:
    if make:
        (tmp_path / "tasks").mkdir()
    with pytest.raises(InvalidInputError, match=complaint):
        load_task_set(directories(), tmp_path, tmp_path)


def test_a_set_on_a_volume_is_looked_for_where_pods_have_it(tmp_path: Path) -> None:
    task_set = TaskSet.model_validate({"source": {"pvc": {"claim": "no-such-claim", "path": "tasks/train"}}})
    with pytest.raises(InvalidInputError, match=r"source\.pvc /seatrial/pvc/no-such-claim/tasks/train does not exist"):
        load_task_set(task_set, tmp_path, tmp_path)


def test_the_same_task_in_two_sets_is_found_under_any_name(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", {"instruction.md": "a"})
    write_task(tmp_path / "tasks/b", {"instruction.md": "b"})
    write_task(tmp_path / "other/c", {"instruction.md": "b", "task.toml": CONFIG + "build_timeout_sec = 3\n"})
    train = load_task_set(directories(), tmp_path, tmp_path)
    held_out = load_task_set(directories(source={"path": "other"}), tmp_path, tmp_path)
    check_disjoint({"train": train})
    with pytest.raises(InvalidInputError, match="heldOut/c: is the same task as train/b; remove it from heldOut"):
        check_disjoint({"train": train, "heldOut": held_out})


def test_any_change_of_a_task_changes_its_digest(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a")
    write_task(tmp_path / "tasks/b")
    write_task(tmp_path / "tasks/c", {"environment/files/invoices.csv": "number\n1\n"})
    write_task(tmp_path / "tasks/d", {"task.toml": CONFIG + "# x"})
    write_task(tmp_path / "tasks/e").joinpath("tests/test.sh").chmod(0o755)
    digests = {task.name: task.digest for task in load_task_set(directories(), tmp_path, tmp_path)}
    assert digests["a"] == digests["b"]
    assert len(set(digests.values())) == 4


def test_links_count_as_what_they_are_and_may_not_lead_a_verifier_out_of_its_task(tmp_path: Path) -> None:
    for name, target in (("a", "files"), ("b", "elsewhere")):
        write_task(tmp_path / "tasks" / name).joinpath("environment/link").symlink_to(target)
    digests = {task.digest for task in load_task_set(directories(), tmp_path, tmp_path)}
    assert len(digests) == 2
    (tmp_path / "tasks/a/tests/inside.sh").symlink_to("test.sh")
    load_task_set(directories(), tmp_path, tmp_path)
    (tmp_path / "tasks/a/tests/outside.sh").symlink_to(tmp_path)
    with pytest.raises(InvalidInputError, match=r"a: tests/outside\.sh links out of the task; put the file"):
        load_task_set(directories(), tmp_path, tmp_path)


# Parquet shards


def archive(files: Mapping[str, str], extra: Iterable[tarfile.TarInfo] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content.encode()))
        for member in extra:
            tar.addfile(member)
    return buffer.getvalue()


def write_shard(path: Path, tasks: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"path": list(tasks), "task_binary": list(tasks.values())}), path)


def shards(**changes: Any) -> TaskSet:
    return TaskSet.model_validate({"source": {"path": "shards"}, "format": "Parquet", **changes})


def test_shards_are_unpacked_once_and_read_like_directories(tmp_path: Path) -> None:
    write_shard(tmp_path / "shards/1.parquet", {"b": archive(FILES), "c": archive(FILES | {"instruction.md": "c"})})
    write_shard(tmp_path / "shards/0.parquet", {"a": archive({f"a/{name}": text for name, text in FILES.items()})})
    tasks = load_task_set(shards(), tmp_path, tmp_path / "cache")
    assert [task.name for task in tasks] == ["a", "b", "c"]
    assert all((task.path / "tests/test.sh").stat().st_mode & 0o100 for task in tasks)
    before = {task.path: task.path.stat().st_ctime_ns for task in tasks}
    again = load_task_set(shards(), tmp_path, tmp_path / "cache")
    assert {task.path: task.path.stat().st_ctime_ns for task in again} == before


def test_only_the_tasks_within_the_limit_are_unpacked(tmp_path: Path) -> None:
    tasks = {name: archive(FILES | {"instruction.md": name}) for name in "cab"}
    write_shard(tmp_path / "shards/0.parquet", tasks)
    loaded = load_task_set(shards(limit=1), tmp_path, tmp_path / "cache")
    assert [task.name for task in loaded] == ["a"]
    assert len(list((tmp_path / "cache/tasks").iterdir())) == 1


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    "binary",
    [
        pytest.param(archive(FILES | {"../escaped": "x"}), id="above"),
        pytest.param(archive(FILES, [link("environment/files/out", "/etc/passwd")]), id="link"),
        pytest.param(gzip.compress(b"no tar"), id="no tar"),
        pytest.param(b"no gzip", id="no gzip"),
        pytest.param(archive(FILES)[:-40], id="cut"),
    ],
)
def test_an_archive_that_is_broken_or_reaches_outside_is_refused_and_leaves_nothing(
    tmp_path: Path, binary: bytes
) -> None:
    write_shard(tmp_path / "shards/0.parquet", {"bad": binary})
    with pytest.raises(InvalidInputError, match="task 'bad': its task_binary"):
        load_task_set(shards(), tmp_path, tmp_path / "cache")
    assert list((tmp_path / "cache/tasks").iterdir()) == []
    assert not (tmp_path / "cache/escaped").exists()


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    for shard in "01":
        write_shard(tmp_path / f"shards/{shard}.parquet", {"a": archive(FILES)})
    with pytest.raises(InvalidInputError, match="task 'a' comes twice"):
        load_task_set(shards(), tmp_path, tmp_path / "cache")


def test_a_shard_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    pq.write_table(pa.table({"path": ["a"]}), tmp_path / "shards/0.parquet")
    with pytest.raises(InvalidInputError, match="no column task_binary"):
        load_task_set(shards(), tmp_path, tmp_path / "cache")
    (tmp_path / "shards/0.parquet").write_text("no parquet")
    with pytest.raises(InvalidInputError, match="no readable parquet file"):
        load_task_set(shards(), tmp_path, tmp_path / "cache")


ARCHIPELAGO = {
    "task_slug": "409-mk-01",
    "world_id": "world_7f",
    "world_short_name": "management-consulting-world-409",
    "ecr_image": "1.dkr.ecr.us-west-2.amazonaws.com/worlds:409",
    "required_env_keys": ["FMP_API_KEY"],
    "needs_snapshot": False,
    "task_name": "409_MK_01",
}
VERIFIERS = [{"verifier_id": "v1", "verifier_values": {"criteria": "States the total"}, "verifier_index": 0}]
GRADER = {
    "task.toml": 'schema_version = "1.4"',
    "archipelago.json": json.dumps(ARCHIPELAGO),
    "tests/verifiers.json": json.dumps(VERIFIERS),
    "tests/grade.py": "",
    "tests/runner/main.py": "",
}


def changed(**changes: Any) -> str:
    """`archipelago.json` with other fields."""
    return json.dumps(ARCHIPELAGO | changes)


def test_an_archipelago_task_tells_its_world_and_by_it_its_domain(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", GRADER)
    write_task(tmp_path / "tasks/b", GRADER | {"archipelago.json": changed(world_short_name="", task_slug="b")})
    stated = 'schema_version = "1.4"\n[metadata]\nworld = "acme"\ndomain = "law"'
    write_task(tmp_path / "tasks/c", GRADER | {"task.toml": stated})
    tasks = load_task_set(directories(), tmp_path, tmp_path)
    assert [(task.world, task.domain) for task in tasks] == [
        ("management-consulting-world-409", "management-consulting"),
        ("world-7f", "default"),
        ("acme", "law"),
    ]
    assert tasks[0].archipelago is not None
    assert tasks[0].archipelago.required_env_keys == ["FMP_API_KEY"]
    assert len({task.content_digest for task in tasks}) == 1, "what names a task is not its question"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"archipelago.json": changed(world_id="")}, "archipelago.json: world_id: String should have at least 1"),
        ({"archipelago.json": "{"}, "archipelago.json: Invalid JSON"),
        ({"archipelago.json": changed(required_env_keys=["A B"])}, "archipelago.json: required_env_keys.0"),
        ({"tests/grade.py": None}, "no tests/grade.py, its grader"),
        ({"tests/runner/main.py": None}, "no tests/runner, its grader"),
        ({"tests/verifiers.json": None}, "no tests/verifiers.json, its criteria"),
        ({"tests/verifiers.json": "[]"}, "tests/verifiers.json is empty"),
        ({"tests/verifiers.json": '[{"verifier_id": "v"}]'}, "tests/verifiers.json: 0.verifier_values: Field required"),
        ({"tests/verifiers.json": json.dumps(VERIFIERS * 2)}, "tests/verifiers.json: v1 comes twice"),
    ],
)
def test_an_archipelago_task_that_could_not_be_graded_is_refused(
    tmp_path: Path, files: Mapping[str, str | None], complaint: str
) -> None:
    write_task(tmp_path / "tasks/good", GRADER)
    write_task(tmp_path / "tasks/bad", {**GRADER, **files})
    with pytest.raises(InvalidInputError, match=rf"1 of 2 tasks .*\n  bad: .*{re.escape(complaint)}"):
        load_task_set(directories(), tmp_path, tmp_path)
