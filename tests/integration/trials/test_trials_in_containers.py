"""Trials where no namespace can be had, as in a pod without privileges: plain processes, and it is said."""

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.trials.spawn import HostConfig
from tests.trial_hosts import trial_host
from tests.trial_tasks import write_trial_task

REPOSITORY = Path(__file__).parents[3]
NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv "$@"'
"""In a user namespace of its own, so that nobody else is concerned."""
CONTAINERS = {
    "root who may not become anybody": (["--map-root-user"], ["--bounding-set=-all"]),
    "an ordinary user": (["--map-user=1000", "--map-group=1000", "--keep-caps"], ["--ambient-caps=-all"]),
}
TRIALS = """
import asyncio, sys
from pathlib import Path
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.spawn import HostConfig
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request

async def main():
    async with trial_host(HostConfig(sandbox=SandboxSpec(provider="local"))) as host:
        print(await host.start())
        for mode in (TrialMode.ORACLE, TrialMode.NO_OP):
            trajectory = await host.run(make_request(Path(sys.argv[1]), mode=mode, trial_id=mode.value))
            print(mode.value, trajectory.outcome, trajectory.reward, trajectory.detail)

asyncio.run(main())
"""


@pytest.mark.parametrize("container", CONTAINERS)
def test_trials_run_as_plain_processes_and_say_so(tmp_path: Path, container: str) -> None:
    user, capabilities = CONTAINERS[container]
    command = ["unshare", "--user", *user, "sh", "-c", NO_NAMESPACES, "sh", *capabilities, "--inh-caps=-all"]
    command.append("--no-new-privs")
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no user namespace to try it in")
    task = write_trial_task(tmp_path / "task")
    done = subprocess.run(
        [*command, sys.executable, "-c", TRIALS, str(task)],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("20")]  # but for the log
    assert lines == ["local, not isolated", "Oracle Completed 1.0 ", "NoOp Completed 0.0 "], done.stdout + done.stderr
    assert "sandboxes are not isolated" in done.stdout, "and why"


@pytest.mark.parametrize(
    ("sandbox", "told"),
    [
        (None, ""),
        (SandboxSpec(provider="harbor:docker"), "harbor:docker"),
        (SandboxSpec(provider="local", config={"isolation": "Plain"}), "local, not isolated"),
    ],
)
async def test_a_host_says_where_its_trials_will_run(sandbox: SandboxSpec | None, told: str) -> None:
    async with trial_host(HostConfig(sandbox=sandbox)) as host:
        assert await host.start() == told
