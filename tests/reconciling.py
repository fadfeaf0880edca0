"""Reconciling objects of a real cluster inside a test."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from hack.cluster import Cluster
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_operator.kube.client import KubeClient, connect
from seatrial_operator.kube.resources import ObjectKey

type Object = dict[str, Any]


class Reconciler(Protocol):
    """What reconciles."""

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Look once."""
        ...


@asynccontextmanager
async def client_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """The operator's client, as the cluster's administrator."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    async with connect() as client:
        yield client


async def settle(
    service: Reconciler, key: ObjectKey, look: Callable[[], Object], is_settled: Callable[[Object], bool]
) -> Object:
    """Reconcile an object again and again, as a queue does, until it is as wanted."""
    deadline = Deadline.after(90)
    while True:
        await service.reconcile(key)
        seen = look()
        if is_settled(seen):
            return seen
        deadline.check(f"{key} to settle; it is {json.dumps(seen.get('status'))}")
        await SYSTEM_CLOCK.sleep(0.2)


def condition(item: Object, kind: str) -> str:
    """Status and reason of a condition; empty if there is none."""
    for one in item.get("status", {}).get("conditions", []):
        if one["type"] == kind:
            return f"{one['status']} {one['reason']}"
    return ""


def says(kind: str, wanted: str) -> Callable[[Object], bool]:
    """Whether an object's condition has this status and reason."""
    return lambda item: condition(item, kind) == wanted
