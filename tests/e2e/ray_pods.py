"""A Ray cluster of several nodes on this machine, each standing for a pod of one role, and a driver that joins it."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from ray.cluster_utils import Cluster

from seatrial_api.driver_request import DriverRequest
from seatrial_api.progress import Progress
from seatrial_api.rlrun import RLRun
from seatrial_trainer.driver.request import ADDRESS_FILE, DriverAddress
from tests.leftovers import descendants

TOKEN = "secret"  # noqa: S105  of a test
_OBJECT_STORE_BYTES = 80 << 20
_PATIENCE_SECONDS = 600.0


class RayPods:
    """Ray's head, which runs nothing, and one node per pod."""

    def __init__(self) -> None:
        # Short: Ray makes sockets below it.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": self._folder.name}
        head["object_store_memory"] = _OBJECT_STORE_BYTES
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._raylets: dict[str, list[int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()
        self._folder.cleanup()

    @property
    def address(self) -> str:
        """What a process in the cluster finds in `RAY_ADDRESS`."""
        return str(self._cluster.address)

    def add(self, *roles: str) -> None:
        """Let a pod join."""
        resources = {f"seatrial_{role}": 1.0 for role in roles}
        node = self._cluster.add_node(num_cpus=2, resources=resources, object_store_memory=_OBJECT_STORE_BYTES)
        raylet = node.all_processes["raylet"][0].process.pid
        for role in roles:
            self._raylets.setdefault(role, []).append(raylet)

    def actors(self, role: str) -> list[list[str]]:
        """Names of the actors on each pod of a role."""
        return [sorted(filter(None, map(_actor_name, descendants(raylet)))) for raylet in self._raylets[role]]


@dataclass
class ClusterRun:
    """A run whose driver is started again and again, each time as a RayJob's entrypoint would."""

    pods: RayPods
    manifest: Path
    base_dir: Path
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, stages: list[str], pods: dict[str, int]) -> subprocess.Popen[bytes]:
        """Start a driver that waits for pods by role."""
        run = RLRun.model_validate(yaml.safe_load(self.manifest.read_text()))
        request = DriverRequest(run=run, base_dir=self.base_dir, stages=stages, pods=pods)
        file = self.base_dir / "secret" / "run.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(request.model_dump_json(by_alias=True))
        (self.folder / ADDRESS_FILE).unlink(missing_ok=True)
        environment = {"RAY_ADDRESS": self.pods.address, "SEATRIAL_DRIVER_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}
        with (self.base_dir / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "seatrial_trainer.driver", str(self.folder), "--request", str(file)]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
        self.started.append(process)
        return process

    def end(self) -> None:
        """Whatever still runs does so no longer."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(_PATIENCE_SECONDS)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request to the driver that runs now, with its token."""
        url = DriverAddress.model_validate_json((self.folder / ADDRESS_FILE).read_text()).url
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.request(method, f"{url}{path}", headers=headers, timeout=10.0, **options)

    def wait_for(self, condition: Callable[[Progress], bool]) -> Progress:
        """The first progress that meets a condition."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        pause = threading.Event()
        while time.monotonic() < deadline and self.started[-1].poll() is None:
            if (self.folder / ADDRESS_FILE).exists():
                progress = Progress.model_validate_json(self.ask("GET", "/v1/progress").content)
                if condition(progress):
                    return progress
                assert progress.ended is None, progress
            pause.wait(0.1)
        raise AssertionError(f"the run never got there:\n{(self.base_dir / 'driver.log').read_text()[-3000:]}")


def _actor_name(pid: int) -> str:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""
    name = title.removeprefix("ray::").split(".")[0]
    return name if title.startswith("ray::") and name in {"EngineActor", "PolicyActor", "TrialHost"} else ""
