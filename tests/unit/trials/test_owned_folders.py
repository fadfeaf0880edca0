"""Folders of hosts that were killed are swept away; those of living ones are left alone."""

import array
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_ext4_is_asked_to_spread_the_trials_over_the_disk(tmp_path: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    if not kind.startswith("ext"):
        pytest.skip(f"the temporary folder lies on {kind.strip()}; this is a matter of ext4 alone")
    owned = OwnedFolder.create(tmp_path)
    folder = os.open(owned.path, os.O_RDONLY)
    flags = array.array("l", [0])
    fcntl.ioctl(folder, 0x80086601, flags)  # FS_IOC_GETFLAGS
    os.close(folder)
    owned.release()
    assert flags[0] & 0x00020000  # FS_TOPDIR_FL
