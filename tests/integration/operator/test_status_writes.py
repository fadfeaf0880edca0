"""How often an operator writes, on the real API server and the real KubeRay."""

from pathlib import Path

from hack.cluster import Cluster
from tests.api_proxy import api_proxy
from tests.cluster_runs import get, patch, start, wait
from tests.operator_process import operator_config, operator_process
from tests.ray_stand_in import RayStandIn


def test_progress_alone_waits_for_its_time_and_a_change_of_state_does_not(
    kuberay: Cluster, ray: RayStandIn, tmp_path: Path
) -> None:
    config = operator_config(ray.url, statusSeconds=3600)
    with api_proxy(kuberay.kubeconfig, tmp_path) as proxy, operator_process(tmp_path, proxy.kubeconfig, config):
        name = start(kuberay, ray, held=True)
        wait(kuberay, name, ".status.stage", "preflight")
        ray.await_polls(name, 5)
        before = [step for step in proxy.writes if name in step]
        ray.await_polls(name, 20)
        assert [step for step in proxy.writes if name in step] == before
        patch(kuberay, name, {"async": {"concurrency": 8}})
        wait(kuberay, name, ".status.observedGeneration", "2")
        status = get(kuberay, f"rl/{name}")["status"]
        assert status["progress"]["step"] >= 20
        ray.held.discard(name)
        wait(kuberay, name, ".status.phase", "Succeeded")


def test_progress_is_written_when_its_time_has_come(kuberay: Cluster, ray: RayStandIn, tmp_path: Path) -> None:
    with operator_process(tmp_path, kuberay.kubeconfig, operator_config(ray.url, statusSeconds=1)):
        name = start(kuberay, ray, held=True)
        wait(kuberay, name, ".status.stage", "preflight")
        step = get(kuberay, f"rl/{name}")["status"]["progress"]["step"]
        kuberay.kubectl("wait", "--for=condition=Progressing", f"rl/{name}", "--namespace=team")
        ray.await_polls(name, 20)
        assert get(kuberay, f"rl/{name}")["status"]["progress"]["step"] > step
