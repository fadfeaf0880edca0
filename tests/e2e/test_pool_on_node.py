"""A RolloutPool on a real node: the chart, KubeRay, Ray, vLLM and a client in a pod, none of them pretended."""

import json
import threading
from typing import Any

import pytest

from hack.cluster.images.ray import RAY, with_checkout
from hack.cluster.layout import ROOT
from seatrial_api.clock import Deadline
from tests.e2e.deployment import NAMESPACE, Deployment

pytestmark = pytest.mark.timeout(1200)

CHAT = """
import asyncio, json, os, sys
import openai

async def main():
    async with openai.AsyncOpenAI(base_url=os.environ["ENDPOINT"], api_key=os.environ["TOKEN"]) as client:
        question = [{"role": "user", "content": "hello"}]
        answer = await client.chat.completions.create(model="policy", messages=question, max_tokens=8)
        print(json.dumps({"tokens": answer.usage.completion_tokens}))

asyncio.run(main())
"""


def pool(replicas: int) -> dict[str, Any]:
    """The quickstart's policy, served."""
    source = {"path": str(ROOT / "examples" / "quickstart" / "policy")}
    return {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": "office", "namespace": NAMESPACE},
        "spec": {
            "model": {"source": source, "dtype": "float32", "contextLength": {"train": 512}},
            "engines": {"replicas": replicas, "maxNumSeqs": 4, "kvCacheGib": 0.125},
            "role": {
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                "podTemplate": with_checkout("ray"),
            },
        },
    }


def wait(deployment: Deployment, what: str, condition: str, seconds: int = 500) -> None:
    """Until kubectl sees it."""
    deployment.kubectl("wait", f"--for={condition}", f"--timeout={seconds}s", what)


def measured(deployment: Deployment) -> dict[str, Any]:
    """The pool's status, once its engine's size is known, a moment after it is ready."""
    deadline, pause = Deadline.after(180), threading.Event()
    while not (status := deployment.get("rolloutpool", "office")["status"])["engines"][0].get("kvTokens"):
        deadline.check("the engine's size")
        pause.wait(0.5)
    return dict(status)


def client(endpoint: str) -> dict[str, Any]:
    """A pod of a user, who knows the endpoint and may read the token."""
    token = {"secretKeyRef": {"name": "office-serving", "key": "token"}}
    template = with_checkout("client")["spec"]
    container = {
        **template["containers"][0],
        "image": RAY,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", CHAT],
        "env": [{"name": "ENDPOINT", "value": endpoint}, {"name": "TOKEN", "valueFrom": token}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client", "namespace": NAMESPACE},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": template["volumes"]},
    }


def test_a_pool_answers_openai_clients_in_the_cluster_and_is_scaled(deployment: Deployment) -> None:
    deployment.cluster.apply(pool(replicas=1))
    wait(deployment, "rolloutpool/office", "condition=Ready")
    served = measured(deployment)
    assert served["engines"][0]["kvTokens"] > 512

    deployment.cluster.apply(client(served["endpoint"]))
    wait(deployment, "pod/client", "jsonpath={.status.phase}=Succeeded", seconds=120)
    assert json.loads(deployment.kubectl("logs", "client").splitlines()[-1]) == {"tokens": 8}

    deployment.kubectl("scale", "rolloutpool/office", "--replicas=2")
    wait(deployment, "rolloutpool/office", "jsonpath={.status.readyReplicas}=2")
    deployment.kubectl("delete", "rolloutpool", "office")
    wait(deployment, "raycluster/office", "delete", seconds=120)
