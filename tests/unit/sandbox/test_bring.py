"""What init containers do: files brought into a sandbox's volumes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial_sandbox.bring import bring, identify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a little of everything."""
    folder = tmp_path / "source"
    (folder / "docs" / "old").mkdir(parents=True)
    (folder / "docs" / "a.txt").write_text("a")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("docs/a.txt")
    (folder / "gone").symlink_to("nowhere")
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it as an init container does."""
    words = [sys.executable, "-I", "-m", "seatrial_sandbox.bring", *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_folders_files_modes_and_links_arrive_as_they_are(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert bring(source, target) == []
    assert (target / "docs" / "a.txt").read_text() == "a"
    assert (target / "docs" / "old").is_dir()
    assert os.access(target / "run.sh", os.X_OK)
    assert (target / "latest").readlink() == Path("docs/a.txt")
    assert (target / "gone").readlink() == Path("nowhere")


def test_what_lies_there_already_stays(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "docs").mkdir(parents=True)
    (target / "docs" / "b.txt").write_text("b")
    assert bring(source, target) == []
    assert sorted(path.name for path in (target / "docs").iterdir()) == ["a.txt", "b.txt", "old"]


def test_several_folders_are_brought_at_once_and_a_missing_one_may_be_forgiven(source: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second" / "below"
    done = run("--if-there", f"{source}={first}", f"{source}/docs={second}", f"{source}/none={tmp_path / 'third'}")
    assert (done.returncode, done.stderr) == (0, "")
    assert (first / "docs" / "a.txt").exists()
    assert (second / "a.txt").exists()
    assert not (tmp_path / "third").exists()


def test_what_cannot_be_copied_is_named(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "docs" / "pipe")
    done = run(f"{source}={tmp_path / 'target'}", f"{source}/none={tmp_path / 'target'}")
    assert done.returncode == 1
    assert "docs/pipe" in done.stderr
    assert f"{source}/none: the image has no such folder" in done.stderr
    assert (tmp_path / "target" / "run.sh").exists()


@pytest.mark.parametrize("known", ["root:x:0:0:root:/root:/bin/sh\n", "root:x:0:0::/:", None])
def test_the_user_gets_a_name_beside_those_of_the_image(tmp_path: Path, known: str | None) -> None:
    etc, target = tmp_path / "etc", tmp_path / "identity"
    etc.mkdir()
    target.mkdir()
    if known is not None:
        (etc / "passwd").write_text(known)
    identify(target, etc)
    *others, ours = (target / "passwd").read_text().splitlines()
    assert others == ([] if known is None else [known.strip()])
    assert ours == f"agent:x:{os.getuid()}:{os.getgid()}:agent:/home/agent:/bin/sh"
    assert (target / "group").read_text() == f"agent:x:{os.getgid()}:\n"
