"""A trial's course in a `sandboxd` whose system calls gVisor answers; to be run inside, by whom gVisor takes for root.

It mounts what volumes of a pod are, starts the daemon, and prints what it saw as JSON. What still runs at its end ends
with its gVisor.
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mcp import Client

from seatrial_api.sandboxd_config import CONFIG_VARIABLE, UID_VARIABLE, SandboxdConfig, SandboxServer
from seatrial_rollout.environment.remote import RemoteSandbox
from tests.sandbox_daemons import Daemon

_VOLUMES = ("/tmp", "/workspace")
_FOLDER = Path("/run/seatrial-daemon")


@dataclass(frozen=True, slots=True)
class _OneDaemon:
    """A `SandboxSource` of one."""

    daemon: Daemon

    async def claim(self, world: str, trial_id: str) -> Daemon:  # noqa: ARG002  it is the only one
        return self.daemon

    async def release(self, sandbox: Daemon) -> None:
        pass


def _start() -> Daemon:
    (_FOLDER / "run").mkdir(parents=True)
    key = Ed25519PrivateKey.generate()
    daemon = Daemon("sandbox", _FOLDER, subprocess.Popen(["true"]), key)
    config = SandboxdConfig(
        public_key=daemon.public_key,
        listen=daemon.address,
        servers=[SandboxServer(name="code", command="seatrial-mcp", args=["code"])],
    )
    told = {CONFIG_VARIABLE: config.model_dump_json(by_alias=True), UID_VARIABLE: daemon.name}
    daemon.process = subprocess.Popen([sys.executable, "-m", "seatrial_sandbox.daemon"], env={**os.environ, **told})
    assert daemon.answers()
    return daemon


async def _course() -> dict[str, object]:
    sandbox = await RemoteSandbox.claim(_OneDaemon(_start()), "office", "trial-1")
    kernel = (await sandbox.exec("cat /proc/version; echo rent > budget.txt")).stdout
    await sandbox.remember()
    async with Client(sandbox.connect("code")) as client:
        result = await client.call_tool("code_exec", {"code": "cat budget.txt; echo paid > budget.txt"})
    archive = BytesIO()
    taken = await sandbox.snapshot(archive)
    await sandbox.exec("rm budget.txt; (setsid sleep 600 >/dev/null 2>&1 &); mkdir -p /tests; echo x > /tests/run")
    await sandbox.restore([archive], taken)
    await sandbox.kill_all()
    return {
        "kernel": kernel,
        "tool": [getattr(content, "text", "") for content in result.content],
        "file": (await sandbox.exec("cat budget.txt")).stdout,
        "left": (await sandbox.exec("cat /proc/[0-9]*/comm | grep '^sleep'")).stdout,
        "findings": [finding.kind.value for finding in await sandbox.findings()],
    }


if __name__ == "__main__":
    for volume in _VOLUMES:
        Path(volume).mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", volume], check=True)
    sys.stdout.write(json.dumps(asyncio.run(_course())))
    sys.stdout.flush()
    os._exit(0)
