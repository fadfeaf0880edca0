"""Runs the command as a person does, and watches it from outside."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from seatrial.local import read_progress
from seatrial_api.progress import Progress
from seatrial_trainer.driver.request import ADDRESS_FILE, DriverAddress
from tests.leftovers import descendants, is_running

REPOSITORY = Path(__file__).parents[2]
QUICKSTART = REPOSITORY / "examples" / "quickstart"
_PATIENCE_SECONDS = 600.0
"""Ten times what a quiet machine needs."""
_ORPHAN_SECONDS = 30.0
_RAYS_OWN = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Ray ends these by itself, a minute after the rest."""


def write_manifest(folder: Path, **spec: Any) -> Path:
    """The quickstart's manifest, smaller, with top-level parts of its spec replaced."""
    manifest = yaml.safe_load((QUICKSTART / "run.yaml").read_text())
    wanted = manifest["spec"]
    wanted["model"]["source"]["path"] = str(QUICKSTART / "policy")
    for name, limit in (("train", 48), ("validation", 8), ("heldOut", 12)):
        wanted["data"][name]["source"]["path"] = str(QUICKSTART / wanted["data"][name]["source"]["path"])
        wanted["data"][name]["limit"] = limit
    wanted["algorithm"] |= {"groupSize": 4, "batchSize": 4, "minibatchSize": 2}
    wanted["checkpoint"] = {"everySteps": 2, "keep": 2}
    wanted["storage"] = {"path": str(folder / "runs")}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(manifest | {"spec": wanted | spec}))
    return path


@dataclass
class LocalRun:
    """`seatrial run` of one manifest, started again and again."""

    manifest: Path
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.manifest.parent / "runs" / "quickstart" / "001"

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the command."""
        process = subprocess.Popen(
            [sys.executable, "-c", "from seatrial.main import main; main()", "run", str(self.manifest), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Whatever still runs does so no longer."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=_PATIENCE_SECONDS)

    def wait_for(self, process: "subprocess.Popen[str]", condition: Callable[[Progress], bool]) -> Progress:
        """The first progress that meets a condition, while the process runs."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        pause = threading.Event()
        while time.monotonic() < deadline:
            progress = read_progress(self.folder)
            if progress is not None and condition(progress):
                return progress
            if process.poll() is not None:
                break
            pause.wait(0.1)
        log = self.folder / "driver.log"
        process.send_signal(signal.SIGINT)
        raise AssertionError(
            f"the run never got there: {process.communicate(timeout=_PATIENCE_SECONDS)[0]}\n{log.read_text()[-3000:]}"
        )

    def driver_pid(self) -> int:
        """Process id of the driver that runs now."""
        return DriverAddress.model_validate_json((self.folder / ADDRESS_FILE).read_text()).pid

    def kill_driver(self) -> list[str]:
        """SIGKILL, as a lost node would; returns the command lines of processes that outlive it for long."""
        driver = self.driver_pid()
        family = descendants(driver)
        os.kill(driver, signal.SIGKILL)
        deadline = time.monotonic() + _ORPHAN_SECONDS
        pause = threading.Event()
        while (
            left := [pid for pid in family if is_running(pid) and not _is_rays(pid)]
        ) and time.monotonic() < deadline:
            pause.wait(0.2)
        return [_command(pid) for pid in left]

    def finish(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        """Exit code and output of a process that is about to end."""
        output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        return process.returncode, output


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _is_rays(pid: int) -> bool:
    return _command(pid).startswith(_RAYS_OWN)
