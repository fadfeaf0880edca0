import subprocess
import sys
from pathlib import Path

from hack.cluster import Grade
from hack.cluster.layout import ROOT

ASK = """
import sys
from hack.cluster import Grade, MissingPartsError
from hack.cluster.machine import require
try:
    require(Grade(sys.argv[1]))
except MissingPartsError as exc:
    print(exc)
"""


def missing_for(grade: Grade, path: Path) -> str:
    words = [sys.executable, "-c", ASK, grade]
    return subprocess.run(words, cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, check=True).stdout


def test_what_is_missing_is_told_with_what_brings_it(tmp_path: Path) -> None:
    told = missing_for(Grade.NODE, tmp_path)
    assert told.startswith("a cluster of grade node needs: ")
    assert "setpriv (apt-get install util-linux)" in told
    assert "nftables" in told
    assert "conntrack" in told


def test_a_control_plane_needs_nothing_that_only_a_node_needs(tmp_path: Path) -> None:
    told = missing_for(Grade.CONTROL_PLANE, tmp_path)
    assert "util-linux" in told
    assert "root" not in told
    assert "nftables" not in told
