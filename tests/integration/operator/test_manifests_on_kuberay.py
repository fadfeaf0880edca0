"""Pods that the real KubeRay operator makes of the golden RayJobs: as many as planned, and none that is refused."""

import json
from collections import Counter
from typing import Any

import pytest

from hack.cluster import Cluster
from hack.cluster.layout import ROOT
from seatrial_api.playbook import segments_of
from seatrial_api.pods import ROLE_LABEL, RUN_LABEL
from seatrial_api.rlrun import RLRun
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.rayjob import pod_counts
from tests.golden_manifests import cases, objects
from tests.leftovers import eventually

CASES = {name: (run, segments, config) for name, run, segments, config in cases()}
MADE = ("apex-397b", "everything-else", "quickstart", "rdma", "single-gpu", "volcano")


@pytest.fixture(scope="module")
def cluster(controllers: Cluster) -> Cluster:
    controllers.apply_crds(ROOT / "crds")
    return controllers


def job_of(run: RLRun, segment: int, config: OperatorConfig, namespace: str) -> dict[str, Any]:
    """A golden RayJob in a namespace of its own, without its owner, of which the cluster knows nothing."""
    *_, job = objects(run, (segment,), config.model_copy(update={"ray_auth": "disabled"}))
    metadata = {**job["metadata"], "namespace": namespace}
    metadata.pop("ownerReferences")
    return {**job, "metadata": metadata}


@pytest.mark.parametrize("name", MADE)
async def test_kuberay_makes_every_pod_of_a_golden_job(cluster: Cluster, name: str) -> None:
    run, segments, config = CASES[name]
    namespace, segment = f"golden-{name}", segments[-1]
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    cluster.apply(job_of(run, segment, config, namespace))
    cut = segments_of(run.spec.stages, run.spec.topology.hold)[segment]
    wanted = Counter({"head": 1, **{role.value: count for role, count in pod_counts(run.spec, cut).items()}})

    def roles() -> Counter[str]:
        selector = f"--selector={RUN_LABEL}={run.metadata.name}"
        pods = json.loads(cluster.kubectl("get", "pods", f"--namespace={namespace}", selector, "--output=json"))
        return Counter(pod["metadata"]["labels"][ROLE_LABEL] for pod in pods["items"])

    await eventually(lambda: roles() == wanted, what=f"{wanted} pods of {name}", seconds=60)
    warnings = cluster.kubectl("get", "events", f"--namespace={namespace}", "--field-selector=reason=FailedToCreatePod")
    assert warnings == ""
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
