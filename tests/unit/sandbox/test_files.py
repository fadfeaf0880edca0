import os
from pathlib import Path

import pytest

from seatrial_sandbox import files
from seatrial_sandbox.errors import SandboxPathError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def test_a_folder_goes_in_with_its_modes_and_the_original_stays_apart(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/run.sh").write_text("echo")
    (source / "sub/run.sh").chmod(0o755)
    files.copy_in(source, root, ["work"], owner=None)
    copy = root / "work/sub/run.sh"
    assert copy.stat().st_mode & 0o777 == 0o755
    copy.write_text("changed")
    assert (source / "sub/run.sh").read_text() == "echo"


def test_a_file_replaces_the_link_that_an_agent_put_there(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    (root / "test.sh").symlink_to(outside)
    (tmp_path / "test.sh").write_text("real")
    files.copy_in(tmp_path / "test.sh", root, ["test.sh"], owner=None)
    assert outside.read_text() == "untouched"
    assert (root / "test.sh").read_text() == "real"


def test_nothing_goes_in_through_a_linked_folder(tmp_path: Path, root: Path) -> None:
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "a").write_text("a")
    with pytest.raises(SandboxPathError):
        files.copy_in(tmp_path / "a", root, ["link", "a"], owner=None)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("parts", [["link"], ["link", "secret"]])
def test_nothing_comes_out_through_a_link(tmp_path: Path, root: Path, parts: list[str]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(SandboxPathError):
        files.copy_out(root, parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_and_pipes_in_a_folder_are_left_behind(tmp_path: Path, root: Path) -> None:
    (root / "a").write_text("a")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    files.copy_out(root, [], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


def test_folders_nested_without_end_are_refused(tmp_path: Path, root: Path) -> None:
    deep = root
    for _ in range(files.MAX_DEPTH + 2):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(SandboxPathError, match="nested"):
        files.copy_out(root, [], tmp_path / "out")


def test_more_bytes_than_allowed_are_refused(tmp_path: Path, root: Path) -> None:
    with (root / "hole").open("wb") as file:
        file.truncate(files.MAX_COPY_BYTES + 1)
    with pytest.raises(SandboxPathError, match="bytes"):
        files.copy_out(root, ["hole"], tmp_path / "out")


def test_a_folder_with_locked_and_very_deep_folders_is_removed(root: Path) -> None:
    (root / "locked").mkdir()
    (root / "locked/a").write_text("a")
    (root / "locked").chmod(0)
    here = os.open(root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    files.remove(root)
    assert not root.exists()
