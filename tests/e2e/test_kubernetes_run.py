"""A run on a real node, from `helm install` to nothing left: vLLM, sandbox pods, training, a head that is killed."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.cluster import Cluster
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.pods import RUN_LABEL, Role
from seatrial_api.sandboxes import BROKER_AUDIENCE, TRIAL_LABEL, WORLD_LABEL
from seatrial_trainer.storage.run_storage import RunStorage
from tests.e2e.deployment import NAMESPACE, RUN, STEPS, Deployment, manifests
from tests.leftovers import eventually

pytestmark = pytest.mark.timeout(1800)

WORLD = "quickstart"
ROLES = (Role.HEAD, Role.ROLLOUT, Role.AGENTS)
"""A run on one node has these pods."""
TRAINED_TOKENS = f'seatrial_tokens_total{{run="{RUN}", kind="trained"}}'
RECONCILES = 'sum(seatrial_reconcile_seconds_count{kind="RLRun"})'
PATIENCE_SECONDS = 900.0
"""Ten times what a quiet machine needs for each of the steps below."""


@dataclass
class Story:
    """What was seen of a run from its `kubectl apply` to its end."""

    deployment: Deployment
    told: dict[str, str] = field(default_factory=dict)
    """What our own command said while it trained."""
    sandboxes: list[dict[str, Any]] = field(default_factory=list)
    """The sandbox pods while it trained."""
    volumes: dict[Role, str] = field(default_factory=dict)
    """Those of its own pods then, by role."""
    reaches_broker: dict[Role, bool] = field(default_factory=dict)
    """Which of them get through to the broker."""
    scraped: dict[str, float] = field(default_factory=dict)
    """What Prometheus had of it then."""
    watched: str = ""
    """What `kubectl get rl -w` wrote."""
    status: dict[str, Any] = field(default_factory=dict)
    """How it ended."""

    @property
    def run_folder(self) -> Path:
        """The run's folder, as the machine sees it."""
        (folder,) = (self.deployment.storage / "quickstart").glob(f"{RUN}-*")
        return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def story(deployment: Deployment) -> Story:
    """Apply a run, kill its head once it has trained a step, and wait for its end."""
    seen = Story(deployment)
    with deployment.watching() as watched:
        deployment.cluster.apply(*manifests(deployment.cluster))
        await deployment.until(trains_in_attempt(0), what="a trained step", seconds=PATIENCE_SECONDS)
        deployment.kubectl("delete", "pod", deployment.head()["metadata"]["name"], "--grace-period=0", "--force")
        await deployment.until(trains_in_attempt(1), what="a step after the loss", seconds=PATIENCE_SECONDS)
        seen.sandboxes = await claimed(deployment)
        seen.reaches_broker = {role: deployment.reaches_broker(role) for role in ROLES}
        seen.volumes = {role: str([pod["spec"]["volumes"] for pod in deployment.pods_of(role)]) for role in ROLES}
        seen.scraped = await deployment.scraped(TRAINED_TOKENS, RECONCILES)
        seen.told = {word: seatrial(deployment.cluster, word, RUN) for word in ("status", "logs")}
        seen.status = await deployment.until(is_over, what="the run to end", seconds=PATIENCE_SECONDS)
    seen.watched = watched.read_text()
    return seen


async def claimed(deployment: Deployment) -> list[dict[str, Any]]:
    """All sandbox pods, once a trial holds one."""
    deadline = Deadline.after(PATIENCE_SECONDS)
    while True:
        pods = deployment.sandboxes()
        if any(TRIAL_LABEL in pod["metadata"]["labels"] for pod in pods):
            return pods
        deadline.check("a trial to hold a sandbox")
        await SYSTEM_CLOCK.sleep(0.2)


def trains_in_attempt(number: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a status tells of an attempt that has trained a step of its own."""

    def trains(status: dict[str, Any]) -> bool:
        first = status.get("current", {}).get("firstStep")
        step = status.get("progress", {}).get("step", 0)
        return status.get("attempt") == number and first is not None and step > first

    return trains


def is_over(status: dict[str, Any]) -> bool:
    return status.get("phase") in {"Succeeded", "Failed", "Guarded"}


def seatrial(cluster: Cluster, *words: str) -> str:
    """Our own command, as a person in the team's namespace runs it."""
    command = [str(Path(sys.executable).with_name("seatrial")), *words, "--namespace", NAMESPACE]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "200"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_stage_passes_its_gates_in_pods(story: Story) -> None:
    stages = {stage["name"]: stage for stage in story.status["stages"]}
    assert story.status["phase"] == "Succeeded", story.status
    assert {name: stage["result"] for name, stage in stages.items()} == {"preflight": "Passed", "train": "Passed"}
    assert [gate["name"] for gate in stages["preflight"]["gates"]]


def test_a_head_killed_in_training_costs_an_attempt_and_no_step(story: Story) -> None:
    train = story.status["stages"][-1]
    assert train["attempt"] == 1
    batches = RunStorage(story.run_folder).stage("train").read_batches(0)
    assert [batch.version for batch in batches] == list(range(STEPS))


def test_the_status_tells_what_a_person_asks(story: Story) -> None:
    assert story.status["sandbox"] == f"kubernetes, pods of world {WORLD}"
    assert story.status["checkpoints"]["best"]["step"] in {STEPS // 2, STEPS}  # where it was validated
    assert 0 <= story.status["metrics"]["reward"] <= 1
    assert story.status["metrics"]["logprobDiff"] < 0.05


def test_kubectl_watching_it_tells_the_story(story: Story) -> None:
    phases = [line.split()[1] for line in story.watched.splitlines() if line.startswith(RUN)]
    assert [phase for phase in ("Queued", "Running", "Succeeded") if phase not in phases] == []
    assert "preflight" in story.watched
    assert "train" in story.watched


def test_our_own_command_tells_it_from_outside(story: Story) -> None:
    assert "train" in story.told["status"]
    assert f"kubernetes, pods of world {WORLD}" in story.told["status"]
    assert "stage started" in story.told["logs"]


def test_prometheus_scrapes_the_driver_and_the_operator(story: Story) -> None:
    assert story.scraped[TRAINED_TOKENS] > 0
    assert story.scraped[RECONCILES] > 0


def test_every_trial_has_a_pod_that_holds_no_rights(story: Story) -> None:
    trials = [pod["metadata"]["labels"].get(TRIAL_LABEL) for pod in story.sandboxes]
    assert len({trial for trial in trials if trial}) == len([trial for trial in trials if trial])
    for pod in story.sandboxes:
        assert pod["metadata"]["labels"][WORLD_LABEL] == WORLD
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_only_the_pods_that_run_trials_can_claim_sandboxes(story: Story) -> None:
    assert [role for role, volumes in story.volumes.items() if BROKER_AUDIENCE in volumes] == [Role.AGENTS]
    assert story.reaches_broker == {Role.HEAD: False, Role.ROLLOUT: False, Role.AGENTS: True}


async def test_a_run_that_is_over_keeps_no_sandbox(story: Story) -> None:
    await eventually(lambda: not story.deployment.sandboxes(), what="the sandboxes to go", seconds=120)
    assert story.deployment.get("rolloutpool", RUN)["spec"]["sandboxes"] == []


async def test_deleting_a_run_leaves_nothing_of_it_but_its_files(story: Story) -> None:
    deployment = story.deployment
    deployment.kubectl("delete", "rlrun", RUN)

    def left() -> list[str]:
        kinds = "rayjobs,rayclusters,pods,services,secrets,rolloutpools"
        return deployment.names(kinds, f"--selector={RUN_LABEL}={RUN}")

    await eventually(lambda: not left(), what="all of the run to go", seconds=120)
    assert deployment.names("rayclusters,rolloutpools") == []
    assert (story.run_folder / "report.html").exists()
