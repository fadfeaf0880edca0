"""A world's inspection on a real node: the operator's Job, a pod per trial claimed of the broker, and the verdict."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.images.worlds import SHELL
from tests.e2e.deployment import NAMESPACE, Deployment
from tests.node_registry import pushed
from tests.trial_tasks import SOLUTION, VERIFIER, write_trial_task

pytestmark = pytest.mark.timeout(900)

WORLD = "inspected"
TASKS = "inspected/tasks"
GENEROUS = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
"""A verifier that is content with anything."""


def world(image: str) -> dict[str, Any]:
    """A world that is inspected with the tasks of a folder in the team's volume."""
    tasks = {"source": {"pvc": {"claim": "runs", "path": TASKS}}}
    tiny = {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "16Mi"}
    return {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "WorldImage",
        "metadata": {"name": WORLD, "namespace": NAMESPACE},
        "spec": {
            "image": image,
            "mcp": {"servers": ["code"]},
            "resources": {"requests": tiny},
            "inspection": {"tasks": tasks, "repeats": 1},
        },
    }


def plant(folder: Path, verifier: str, **files: str) -> None:
    """A task in place of the one that was there."""
    shutil.rmtree(folder, ignore_errors=True)
    write_trial_task(folder, servers=["code"], verifier=verifier, files=files)


def inspected(deployment: Deployment, reason: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the condition says once it has a reason, and what the status has of the inspection."""
    path = '{.status.conditions[?(@.type=="Inspected")].reason}'
    deployment.kubectl("wait", f"worldimage/{WORLD}", f"--for=jsonpath={path}={reason}", "--timeout=600s")
    status = deployment.get("worldimage", WORLD)["status"]
    (condition,) = (one for one in status["conditions"] if one["type"] == "Inspected")
    return condition, status["inspection"]


def sandboxes_started(deployment: Deployment) -> set[str]:
    """Names of the world's sandboxes that the kubelet has started."""
    selector = "--field-selector=involvedObject.kind=Pod,reason=Started"
    events = json.loads(deployment.kubectl("get", "events", selector, "--output=json"))["items"]
    world_containers = (
        one["involvedObject"] for one in events if one["involvedObject"].get("fieldPath") == "spec.containers{world}"
    )
    return {pod["name"] for pod in world_containers if pod["name"].startswith(f"{WORLD}-")}


def test_a_world_is_fit_once_what_its_inspection_found_in_real_sandboxes_is_mended(deployment: Deployment) -> None:
    task = deployment.storage / TASKS / "task"
    plant(task, GENEROUS, **{"environment/files/old/solve.sh": SOLUTION})
    deployment.cluster.apply(world(pushed(deployment.cluster, SHELL)))

    condition, found = inspected(deployment, "InspectionFailed")
    assert condition["status"] == "False"
    assert "IdlePasses task: doing nothing was graded 1" in condition["message"]
    assert "Leaked task: " in condition["message"]
    assert found["faults"] == {"IdlePasses": 1, "Leaked": 1}
    assert len(sandboxes_started(deployment)) >= found["trials"] > 0
    (job,) = deployment.names("jobs")
    assert "doing nothing was graded 1" in deployment.kubectl("logs", job)

    plant(task, VERIFIER)
    deployment.kubectl("delete", job)
    condition, passed = inspected(deployment, "InspectionPassed")
    assert condition["status"] == "True"
    assert passed["passed"]
    assert len(sandboxes_started(deployment)) >= found["trials"] + passed["trials"]
    deployment.kubectl("delete", "worldimage", WORLD)
