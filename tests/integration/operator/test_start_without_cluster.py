"""Processes that are started before there is a cluster for them."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hack.cluster import Cluster
from tests.api_proxy import api_proxy
from tests.leftovers import eventually
from tests.operator_process import LONG_LEASE, operator_config, operator_process
from tests.ports import free_port
from tests.ray_stand_in import RayStandIn


@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", ["seatrial_operator", "seatrial_operator.sandboxes"])
async def test_a_process_waits_for_an_api_server_that_does_not_answer_and_says_so(
    kuberay: Cluster, ray: RayStandIn, tmp_path: Path, module: str
) -> None:
    port = free_port()
    broker = {"port": 0, "lease": {**LONG_LEASE, "name": "seatrial-broker"}}
    config = operator_config(ray.url, healthPort=port, sandboxes=broker)
    with api_proxy(kuberay.kubeconfig, tmp_path) as proxy:
        proxy.is_cut = True
        with operator_process(tmp_path, proxy.kubeconfig, config, module=module) as process:

            def waits() -> bool:
                events = [record["event"] for record in process.records()]
                return events.count("waiting for the cluster") >= 3

            await eventually(waits, what="the process to try again", seconds=240)
            status, words = _page(port, "readyz")
            assert status == 503
            assert "HTTP 503" in words
            assert _page(port, "healthz") == (200, "ok")
            proxy.is_cut = False
            await eventually(lambda: _page(port, "readyz") == (200, "ok"), what="readiness", seconds=240)
            assert process.process.poll() is None
            assert process.stop() == 0


def _page(port: int, name: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
