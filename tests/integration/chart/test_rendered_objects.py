import json
from typing import Any

import pytest

from hack.cluster import Cluster
from tests.charts import EVERYTHING, render

KINDS = (
    *("deploy", "configmap", "serviceaccount", "service", "networkpolicy", "poddisruptionbudget"),
    *("role", "rolebinding", "clusterrole", "clusterrolebinding"),
    *("validatingadmissionpolicies", "validatingadmissionpolicybindings", "crd"),
    *("servicemonitor", "podmonitor", "prometheusrule"),
)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_api_server_accepts_every_object(own_control_plane: Cluster, values: dict[str, Any]) -> None:
    objects = render(values)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    answer = own_control_plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=listed
    )
    assert len(answer.splitlines()) == len(objects)


def test_applied_twice_nothing_changes(installed: Cluster, rendered: list[dict[str, Any]]) -> None:
    objects = [item for item in rendered if item["kind"] != "Pod"]
    before = _versions(installed)
    installed.apply(*objects)
    assert _versions(installed) == before


def _versions(cluster: Cluster) -> set[str]:
    kinds = ",".join(KINDS)
    columns = "{range .items[*]}{.kind}/{.metadata.name}@{.metadata.resourceVersion} {end}"
    ours = "app.kubernetes.io/instance=seatrial"
    return set(cluster.kubectl("get", kinds, "-A", "-l", ours, "-o", f"jsonpath={columns}").split())
