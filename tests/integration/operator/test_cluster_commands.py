"""`seatrial status` and `resume` against a real API server; `top` and `logs` need pods and are tried on a node."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hack.cluster import Cluster

ROOT = Path(__file__).parents[3]
NAMESPACE = "looked-at"
STATUS = {
    "observedGeneration": 1,
    "phase": "Guarded",
    "stage": "train",
    "segment": 1,
    "attempt": 2,
    "sandbox": "local, not isolated",
    "stages": [
        {
            "name": "preflight",
            "result": "Passed",
            "startedAt": "2026-01-01T10:00:00Z",
            "finishedAt": "2026-01-01T10:05:00Z",
        },
        {"name": "train", "result": "Guarded", "message": "entropy rose", "startedAt": "2026-01-01T10:05:00Z"},
    ],
    "conditions": [
        {
            "type": "Guarded",
            "status": "True",
            "reason": "GuardFired",
            "message": "entropy 0.7 > 0.6",
            "lastTransitionTime": "2026-01-01T10:06:00Z",
            "observedGeneration": 1,
        }
    ],
    "metrics": {"reward": 0.512, "trialsInFlight": 32},
    "checkpoints": {"last": {"step": 5, "uri": "/seatrial/storage/run/checkpoints/5"}},
}

type Seatrial = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def seatrial(control_plane: Cluster) -> Seatrial:
    """Runs the command with the cluster's kubeconfig."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("seatrial")), *words],
            env={"KUBECONFIG": str(control_plane.kubeconfig), "COLUMNS": "160", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture(scope="module")
def guarded_run(control_plane: Cluster) -> Iterator[str]:
    """A run whose status is as the operator would have written it, in a namespace of its own."""
    control_plane.apply_crds(ROOT / "crds")
    control_plane.kubectl("create", "namespace", NAMESPACE)
    control_plane.kubectl("apply", "-n", NAMESPACE, "-f", str(ROOT / "examples/quickstart/run.yaml"))
    patch = json.dumps({"status": STATUS})
    control_plane.kubectl(
        "patch", "-n", NAMESPACE, "rlrun", "quickstart", "--subresource=status", "--type=merge", "-p", patch
    )
    yield "quickstart"
    control_plane.kubectl("delete", "-n", NAMESPACE, "rlrun", "--all")
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_status_tells_the_stages_the_conditions_and_the_figures(guarded_run: str, seatrial: Seatrial) -> None:
    shown = seatrial("status", guarded_run, "-n", NAMESPACE).stdout

    told = (
        f"{NAMESPACE}/quickstart · Guarded",
        "entropy rose",
        "GuardFired",
        "entropy 0.7 > 0.6",
        "0.512",
        "32 trials",
    )
    assert not [text for text in (*told, "2 of segment 1", "local, not isolated", "step 5") if text not in shown]


def test_resume_asks_the_run_to_go_on(guarded_run: str, seatrial: Seatrial, control_plane: Cluster) -> None:
    asked = seatrial("resume", guarded_run, "-n", NAMESPACE)

    run = json.loads(control_plane.kubectl("get", "-n", NAMESPACE, "rlrun", guarded_run, "-o", "json"))
    assert asked.returncode == 0, asked.stderr
    assert run["metadata"]["annotations"]["seatrial.dev/resume"]


@pytest.mark.parametrize(("phase", "words"), [("Succeeded", "nothing to go on with"), ("Running", "seatrial top")])
def test_resume_says_when_there_is_nothing_to_resume(
    guarded_run: str, seatrial: Seatrial, control_plane: Cluster, phase: str, words: str
) -> None:
    patch = ("patch", "-n", NAMESPACE, "rlrun", guarded_run, "--subresource=status", "--type=merge", "-p")
    control_plane.kubectl(*patch, json.dumps({"status": {"phase": phase}}))
    refused = seatrial("resume", guarded_run, "-n", NAMESPACE)
    control_plane.kubectl(*patch, json.dumps({"status": {"phase": "Guarded"}}))
    assert refused.returncode == 2
    assert words in refused.stderr


def test_logs_of_a_pod_that_has_none_yet_say_so_and_go_on(
    guarded_run: str, seatrial: Seatrial, control_plane: Cluster
) -> None:
    labels = {"seatrial.dev/run": guarded_run, "seatrial.dev/role": "agents"}
    spec = {"containers": [{"name": "ray", "image": "none"}], "automountServiceAccountToken": False}
    places = {"one": {"nodeName": "nowhere"}, "two": {}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}}
        | {"spec": spec | place}
        for name, place in places.items()
    ]
    control_plane.apply(account, *pods)
    told = seatrial("logs", guarded_run, "-n", NAMESPACE, "--role=agents")
    assert told.returncode == 0, told.stderr
    one, two = sorted(told.stdout.splitlines())
    assert one.startswith("one  (no log: ")
    assert two == "two  (no log yet)"


@pytest.mark.parametrize("command", ["status", "resume", "logs", "top"])
def test_a_run_that_is_not_there_is_said_to_be_missing(command: str, guarded_run: str, seatrial: Seatrial) -> None:
    missing = seatrial(command, "nowhere")

    assert missing.returncode == 2
    assert "nowhere" in missing.stderr


def test_a_cluster_that_does_not_answer_is_told_in_one_sentence(tmp_path: Path, control_plane: Cluster) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    asked = subprocess.run(
        [str(Path(sys.executable).with_name("seatrial")), "status", "any"],
        env={"KUBECONFIG": str(tmp_path / "config"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert asked.returncode == 1
    assert "the cluster does not answer" in asked.stderr
    assert "Traceback" not in asked.stderr
