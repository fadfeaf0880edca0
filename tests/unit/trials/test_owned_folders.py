"""Folders of hosts that were killed are swept away; those of living ones are left alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from seatrial_rollout.trials.folders import OwnedFolder, try_to_remove

OWN_AND_WAIT = """
import sys
from pathlib import Path
from seatrial_rollout.trials.folders import OwnedFolder
folder = OwnedFolder.create(Path(sys.argv[1]))
(folder.path / "deep").mkdir()
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_outlives_its_killed_owner_only_until_the_next_one_comes(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWN_AND_WAIT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        living = OwnedFolder.create(tmp_path)
        assert (folder / "deep").is_dir(), "its owner lives"
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    assert (folder / "deep").is_dir()
    next_one = OwnedFolder.create(tmp_path)
    assert not folder.exists()
    assert {entry.name for entry in tmp_path.iterdir()} == {living.path.name, next_one.path.name}
    living.release()
    next_one.release()


def test_removing_says_whether_the_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "locked").mkdir(parents=True)
    (folder / "locked").chmod(0)
    assert try_to_remove(folder)
    assert not folder.exists()
    assert try_to_remove(folder), "twice does no harm"
