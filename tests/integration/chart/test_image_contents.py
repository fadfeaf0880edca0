"""What an image holds, installed from its lock into an environment of its own, is enough and no more than that."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hack.cluster.layout import ROOT
from tests.image_environment import UV, image_python

HEAVY = ("torch", "ray", "vllm", "transformers", "numpy")


@pytest.mark.skipif(not Path(UV).exists(), reason="needs uv, which `make install` brings into .cache/uv")
@pytest.mark.parametrize(
    ("image", "folders", "modules", "absent"),
    [
        ("operator", ("api", "operator"), "seatrial_operator.__main__", (*HEAVY, "kubernetes")),
        ("sandbox-runtime", ("api", "sandbox_runtime"), "seatrial_sandbox.__main__", HEAVY),
        (
            "ray-cpu",
            ("api", "sandbox_runtime", "rollout_worker", "trainer"),
            "seatrial_trainer.driver.__main__, seatrial_rollout.serving, vllm",
            ("kopf", "kubernetes", "pytest"),
        ),
    ],
)
def test_an_image_can_start_what_it_is_for(
    tmp_path: Path, image: str, folders: tuple[str, ...], modules: str, absent: tuple[str, ...]
) -> None:
    python = image_python(image, tmp_path / "venv")
    program = f"import {modules}, importlib.util as u; assert not [m for m in {absent} if u.find_spec(m)]"
    path = os.pathsep.join(str(ROOT / name) for name in folders)
    done = subprocess.run(
        [python, "-c", program], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "venv")
