"""The quickstart's own modules, its task sets, and a way to grade an office."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart"
sys.path.insert(0, str(QUICKSTART))  # its scripts import each other as a user runs them: from their own folder

type Grade = Callable[[Path, Path], dict[str, float]]


def run_script(script: Path, workspace: Path, logs: Path) -> None:
    """Run a task's script as a sandbox would, over folders of the test's own."""
    environment = {"PATH": os.environ["PATH"], "WORKSPACE": str(workspace), "LOGS": str(logs / "verifier")}
    subprocess.run(["bash", script], env=environment, check=True, timeout=20)


@pytest.fixture
def grade(tmp_path: Path) -> Grade:
    """Runs the verifier of a task folder over a workspace."""

    def run(task: Path, workspace: Path) -> dict[str, float]:
        (tmp_path / "logs" / "verifier").mkdir(parents=True, exist_ok=True)
        run_script(task / "tests" / "test.sh", workspace, tmp_path / "logs")
        scores: dict[str, float] = json.loads((tmp_path / "logs" / "verifier" / "reward.json").read_text())
        return scores

    return run


@pytest.fixture(scope="session")
def task_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train, validation and held-out sets as the command line writes them."""
    out: Path = tmp_path_factory.mktemp("tasks")
    subprocess.run([sys.executable, QUICKSTART / "make_tasks.py", out], check=True, capture_output=True, timeout=120)
    return out
