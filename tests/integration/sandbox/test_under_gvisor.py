"""`sandboxd` where gVisor answers system calls instead of the kernel."""

import json
import subprocess
import sys

import pytest

from hack.cluster.layout import BIN, ROOT

RUNSC = BIN / "runsc"

pytestmark = pytest.mark.skipif(
    not RUNSC.exists(), reason="needs gVisor, which takes minutes to build (make cluster-gvisor)"
)


@pytest.mark.timeout(300)
def test_a_trial_s_course_is_the_same_under_gvisor() -> None:
    gvisor = [str(RUNSC), "--platform=systrap", "--network=none", "--rootless", "do", f"-cwd={ROOT}"]
    done = subprocess.run(
        [*gvisor, sys.executable, "-m", "tests.gvisor_course"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout)
    assert "gvisor" in saw["kernel"]
    assert (saw["tool"], saw["file"], saw["left"]) == (["rent"], "paid\n", "")
    assert saw["findings"] == ["LeftRunning", "Tampering"]
