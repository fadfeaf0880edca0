"""Nodes that only pretend: KWOK plays them, so that hundreds cost little."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from threading import Event
from typing import Any

from hack.cluster.add_ons import FAKE_NODE
from hack.cluster.api_server import ApiServer, is_ready
from hack.cluster.errors import ClusterError
from seatrial_api.clock import Deadline

_THREADS = 4
_LABELS = {"type": "kwok", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
_TAINT = {"key": FAKE_NODE, "value": "fake", "effect": "NoSchedule"}
_PATH = "/api/v1/nodes"
_READY_SECONDS = 120.0
_POLL_SECONDS = 0.3


def fake_node(name: str, capacity: Mapping[str, str], *, is_tainted: bool) -> dict[str, Any]:
    """A node that KWOK plays; with a taint, only pods go there that mean it."""
    resources = {"pods": "250"} | dict(capacity)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": _LABELS | {"kubernetes.io/hostname": name},
            "annotations": {FAKE_NODE: "fake"},
        },
        "spec": {"taints": [_TAINT] if is_tainted else []},
        "status": {"allocatable": resources, "capacity": resources},
    }


def create(server: ApiServer, nodes: list[dict[str, Any]]) -> None:
    """Create nodes, several at a time (kubectl would take minutes for hundreds), and wait until all are ready.

    Raises:
        ClusterError: if the API server refuses one.
        WaitTimeoutError: if they do not become ready.
    """

    def create_one(node: dict[str, Any]) -> None:
        status, answer = server.request("POST", _PATH, node)
        if status != HTTPStatus.CREATED:
            raise ClusterError(f"node {node['metadata']['name']} was refused: {answer}")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(create_one, nodes))
    names = {node["metadata"]["name"] for node in nodes}
    deadline = Deadline.after(_READY_SECONDS)
    while not names <= _ready(server):
        deadline.check(f"{len(names)} fake nodes to be ready")
        Event().wait(_POLL_SECONDS)


def _ready(server: ApiServer) -> set[str]:
    _, listed = server.request("GET", f"{_PATH}?labelSelector=type%3Dkwok")
    return {node["metadata"]["name"] for node in listed["items"] if is_ready(node)}
