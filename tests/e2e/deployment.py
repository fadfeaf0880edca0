"""Seatrial as an administrator installs it and a researcher uses it, on a real node."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from hack.cluster.images.operator import OPERATOR, operator_image
from hack.cluster.images.ray import RAY, checkout_volume, ray_image, with_checkout
from hack.cluster.images.sandbox_runtime import SANDBOX_RUNTIME, sandbox_runtime_image
from hack.cluster.images.worlds import SHELL, shell_image
from hack.cluster.layout import BIN, ROOT
from hack.cluster.volumes import local_volume
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.pods import DRIVER_PORT, ROLE_LABEL, Role
from seatrial_api.sandboxes import BROKER_PORT, SANDBOX_ROLE
from tests.charts import CHART, RELEASE, helm
from tests.charts import NAMESPACE as SYSTEM
from tests.node_registry import pushed
from tests.prometheus import needs

QUICKSTART = ROOT / "examples" / "quickstart"
NAMESPACE = "team"
"""The team's."""
RUN = "tiny"
STEPS = 6
"""Enough for a person to look at it meanwhile, and few enough to wait for."""
SANDBOXES = 6
"""Trials at once; each is in a pod of its own."""
_CLAIM = "runs"
_POD_USER = 1000
_ROLES = ("head", "rollout", "agents")


@dataclass(frozen=True)
class Deployment:
    """An operator in a cluster and a team's namespace with a volume for its runs."""

    cluster: Cluster
    storage: Path
    """The team's volume, as the machine sees it."""

    @classmethod
    def install(cls, cluster: Cluster, storage: Path) -> "Deployment":
        """Load the images, make the namespace and its volumes, and install the chart."""
        for archive in (ray_image(), operator_image(), sandbox_runtime_image(), shell_image()):
            cluster.load(archive)
        cluster.kubectl("create", "namespace", NAMESPACE)
        _fill(storage)
        cluster.apply(*checkout_volume(NAMESPACE), *local_volume(NAMESPACE, _CLAIM, storage))
        helm("install", RELEASE, str(CHART), "--create-namespace", "--wait", cluster=cluster, values=_values())
        return cls(cluster, storage)

    def kubectl(self, *words: str) -> str:
        """Kubectl in the team's namespace."""
        return self.cluster.kubectl(f"--namespace={NAMESPACE}", *words)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object."""
        item: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return item

    def names(self, kinds: str, *selector: str) -> list[str]:
        """Names of objects."""
        return self.kubectl("get", kinds, "--output=name", *selector).split()

    def pods_of(self, role: str) -> list[dict[str, Any]]:
        """All pods of a role."""
        found = json.loads(self.kubectl("get", "pods", f"--selector={ROLE_LABEL}={role}", "--output=json"))
        return list(found["items"])

    def head(self) -> dict[str, Any]:
        """The newest head pod."""
        return max(self.pods_of(Role.HEAD), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def reaches_broker(self, role: Role) -> bool:
        """Whether a pod of a role gets through to the broker's port, past all network policies."""
        broker = self.cluster.kubectl(
            "get", "service", f"{RELEASE}-broker", f"--namespace={SYSTEM}", "--output=jsonpath={.spec.clusterIP}"
        )
        pod = self.pods_of(role)[0]["metadata"]["name"]
        attempt = f"timeout 3 bash -c '</dev/tcp/{broker}/{BROKER_PORT}' && echo through || echo stopped"
        return self.kubectl("exec", pod, "--container=ray", "--", "bash", "-c", attempt).strip() == "through"

    def sandboxes(self) -> list[dict[str, Any]]:
        """Sandbox pods that are not on their way out."""
        return [pod for pod in self.pods_of(SANDBOX_ROLE) if "deletionTimestamp" not in pod["metadata"]]

    def status(self) -> dict[str, Any]:
        """The run's status."""
        status: dict[str, Any] = self.get("rlrun", RUN).get("status", {})
        return status

    @contextmanager
    def watching(self) -> Iterator[Path]:
        """What `kubectl get rl -w` writes while the block runs."""
        output = self.storage / "watched"
        command = [str(BIN / "kubectl"), f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        with output.open("wb") as file:
            watch = subprocess.Popen([*command, "get", "rlruns", "--watch"], stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield output
        finally:
            watch.terminate()
            watch.wait(30)

    async def scraped(self, *expressions: str) -> dict[str, float]:
        """What a real Prometheus inside the node has, once it has scraped the operator and the run's driver.

        Args:
            expressions: Queries that each have one series in the end.
        """
        with self._prometheus() as url:
            return {one: await self._value(url, one) for one in expressions}

    @contextmanager
    def _prometheus(self) -> Iterator[str]:
        address = "127.0.0.1:9090"  # the node's own loopback
        folder = self.storage / "prometheus"
        folder.mkdir()
        scrape = {"job_name": "seatrial", "static_configs": [{"targets": self._metrics_addresses()}]}
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command = self.cluster.inside(needs("prometheus"), *options, f"--web.listen-address={address}")
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield f"http://{address}/api/v1/query"
        finally:
            server.terminate()
            server.wait(30)

    def _metrics_addresses(self) -> list[str]:
        service = json.loads(self.cluster.kubectl("get", "service", RELEASE, f"--namespace={SYSTEM}", "--output=json"))
        return [f"{self.head()['status']['podIP']}:{DRIVER_PORT}", f"{service['spec']['clusterIP']}:8080"]

    async def _value(self, url: str, expression: str) -> float:
        deadline = Deadline.after(180)
        query = ["--data-urlencode", f"query={expression}"]
        while True:
            deadline.check(f"Prometheus to have {expression}")
            with suppress(CommandError):  # it is not up yet
                told = json.loads(self.cluster.run("curl", "-sfG", url, *query))
                if told["data"]["result"]:
                    return float(told["data"]["result"][0]["value"][1])
            await SYSTEM_CLOCK.sleep(0.5)

    async def until(
        self, condition: Callable[[dict[str, Any]], object], *, what: str, seconds: float
    ) -> dict[str, Any]:
        """The first status that meets a condition.

        Raises:
            WaitTimeoutError: if none does in time.
        """
        deadline = Deadline.after(seconds)
        while not condition(status := self.status()):
            deadline.check(f"{what}; the status is {json.dumps(status)[:4000]}")
            await SYSTEM_CLOCK.sleep(0.5)
        return status


def manifests(cluster: Cluster) -> list[dict[str, Any]]:
    """The quickstart for clusters, smaller, in the thin images: its world and its run."""
    world, run = yaml.safe_load_all((QUICKSTART / "cluster.yaml").read_text())
    world["metadata"]["namespace"] = NAMESPACE
    world["spec"]["image"] = pushed(cluster, SHELL)
    world["spec"]["resources"]["requests"] = {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "16Mi"}
    run["metadata"] = {"name": RUN, "namespace": NAMESPACE}
    spec = run["spec"]
    for name, limit in (("train", 48), ("validation", 4), ("heldOut", 12)):
        spec["data"][name]["limit"] = limit
    spec["algorithm"] |= {"groupSize": 4, "batchSize": 2, "minibatchSize": 2}
    spec["algorithm"]["optimizer"]["learningRate"] = 0.00001  # so few trials teach nothing but noise
    spec["checkpoint"] = {"everySteps": 1, "keep": 2}
    spec["storage"] = {"pvc": {"claim": _CLAIM, "path": "quickstart"}}
    spec["stages"] = [
        {"name": "preflight", "preflight": {"tasks": 4, "varianceTasks": 1, "maxVarianceTries": 8}},
        {"name": "train", "train": {"steps": STEPS, "validateEverySteps": STEPS // 2}},
    ]
    spec["topology"]["agents"]["trialsPerHost"] = SANDBOXES
    spec["rollout"]["sandboxes"][0] |= {"warmMin": 2, "warmMax": 4, "ceiling": SANDBOXES + 4}
    for role in _ROLES:
        spec["topology"][role]["podTemplate"] = with_checkout("ray")
    return [world, run]


def _values() -> dict[str, Any]:
    repository, _, tag = OPERATOR.rpartition(":")
    often = {"pollSeconds": 1, "statusSeconds": 1}
    small = {"requests": {"cpu": "20m", "memory": "256Mi"}}
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "config": {
            "images": {"rayCpu": RAY, "rayGpu": RAY},
            "namespaces": [NAMESPACE],
            "sandboxes": {"image": SANDBOX_RUNTIME, "statusSeconds": 1, "surplusSeconds": 5},
            "inspections": {"resources": small, "podTemplate": with_checkout("inspection")},
            **often,
        },
    }


def _fill(storage: Path) -> None:
    """What a person copies into the volume: the policy and the tasks, owned by the pods' user."""
    for part in ("policy", "tasks"):
        shutil.copytree(QUICKSTART / part, storage / "quickstart" / part)
    for path in (storage, *storage.rglob("*")):
        shutil.chown(path, _POD_USER, _POD_USER)
