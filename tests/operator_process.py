"""The operator as a process of its own, so that it can be killed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import Cluster

_END_SECONDS = 20
LONG_LEASE = {"namespace": "default", "durationSeconds": 120, "renewSeconds": 100, "retrySeconds": 0.5}
"""No operator loses it to a machine that is busy with a whole cluster; one that is killed must be freed of it."""
SHORT_LEASE = {"namespace": "default", "durationSeconds": 10, "renewSeconds": 8, "retrySeconds": 0.5}
"""For tests about the Lease itself."""


@dataclass
class OperatorProcess:
    """A running operator."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Signal 9: nothing is finished, nothing is let go."""
        self.process.kill()
        self.process.wait(_END_SECONDS)

    def stop(self) -> int:
        """Signal 15, and wait for the end."""
        self.process.terminate()
        return self.process.wait(_END_SECONDS)

    def records(self) -> list[dict[str, Any]]:
        """Its log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def operator_config(progress_url: str, **changes: Any) -> dict[str, Any]:
    """Settings that let a test see soon what takes minutes in a cluster."""
    return {
        "progressUrl": f"{progress_url}/driver/{{namespace}}/{{cluster}}",
        "pollSeconds": 0.3,
        "resyncSeconds": 20,
        "backoffSeconds": 0.5,
        "driverTimeoutSeconds": 10,
        "healthPort": 0,
        "metricsPort": 0,
        "lease": LONG_LEASE,
        **changes,
    }


@dataclass(frozen=True)
class Surroundings:
    """What a process of the operator's package runs in."""

    python: Path = Path(sys.executable)
    environment: Mapping[str, str] = field(default_factory=lambda: {"SEATRIAL_LOG_LEVEL": "DEBUG"})
    """Variables beside ours."""


@contextmanager
def operator_process(
    folder: Path,
    kubeconfig: Path,
    config: Mapping[str, Any],
    *,
    module: str = "seatrial_operator",
    within: Surroundings = Surroundings(),
) -> Iterator[OperatorProcess]:
    """An operator that ends with the block at the latest; its log stays in `folder`."""
    started = start_operator(folder, kubeconfig, config, module=module, within=within)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            try:
                started.stop()
            except subprocess.TimeoutExpired:
                started.kill()


def start_operator(
    folder: Path,
    kubeconfig: Path,
    config: Mapping[str, Any],
    *,
    module: str = "seatrial_operator",
    within: Surroundings = Surroundings(),
) -> OperatorProcess:
    """Start an operator, or another process of its package; the caller ends it."""
    settings = folder / "operator.yaml"
    settings.write_text(yaml.safe_dump(dict(config)))
    log = folder / f"{module}.log"
    environment = {
        **os.environ,
        **within.environment,
        "KUBECONFIG": str(kubeconfig),
        "SEATRIAL_OPERATOR_CONFIG": str(settings),
    }
    with log.open("ab") as sink:
        process = subprocess.Popen([within.python, "-m", module], env=environment, stdout=sink, stderr=sink)
    return OperatorProcess(process, log)


def free_lease(cluster: Cluster) -> None:
    """Take an operator's Lease from whoever holds it: that of one that was killed need not run out then."""
    body = '{"spec":{"holderIdentity":""}}'
    cluster.kubectl("patch", "lease/seatrial-operator", "--namespace=default", "--type=merge", f"--patch={body}")
