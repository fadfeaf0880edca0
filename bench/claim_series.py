"""What claims of sandboxes are measured with: arrivals at a rate, latencies, writes that an API server counted, CPU."""

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hack.cluster.api_server import ApiServer
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_operator.kube.resources import Resource

_PERCENTS = (50, 90, 99)
_WRITES = {"POST", "PUT", "PATCH", "DELETE", "APPLY"}
_OURSELVES = {"leases", "events", "tokenreviews", "serviceaccounts", "nodes", "subjectaccessreviews"}
"""Resources that are written to whether or not there are claims."""


@dataclass
class Series:
    """Latencies of one kind of request, in s."""

    name: str
    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def cuts(self) -> list[float]:
        """The percentiles from 1 to 99."""
        return statistics.quantiles(self.seconds, n=100)

    def row(self) -> str:
        """One line of the table."""
        if len(self.seconds) < 2:
            return f"{self.name:44} nothing to tell; failures {dict(self.failures)}"
        cuts = self.cuts()
        told = "".join(f"p{percent} {cuts[percent - 1] * 1e3:9.2f}  " for percent in _PERCENTS)
        return f"{self.name:44} {told}ms  n {len(self.seconds)}  failures {dict(self.failures) or 'none'}"

    def over(self, other: Self) -> str:
        """What this adds to another, percentile by percentile."""
        mine, theirs = self.cuts(), other.cuts()
        added = {percent: (mine[percent - 1] - theirs[percent - 1]) * 1e3 for percent in _PERCENTS}
        return ", ".join(f"p{percent} {milliseconds:.2f}" for percent, milliseconds in added.items()) + " ms"


async def open_loop(
    count: int, rate: float, one: Callable[[int], Coroutine[None, None, None]], first: int = 0
) -> float:
    """Begin `one` at a rate, however long each takes; returns the time until the last has ended, in s."""
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))  # noqa: TID251  a bench
            tasks.create_task(one(first + number))
    return time.perf_counter() - started


async def timed(series: Series, request: Coroutine[None, None, None]) -> None:
    """Add what a request took."""
    begun = time.perf_counter()
    await request
    series.seconds.append(time.perf_counter() - begun)


def writes_served(server: ApiServer) -> Counter[str]:
    """Writes that the API server has served so far, by verb and resource; heartbeats and the like aside."""
    _, text = server.request("GET", "/metrics")
    counts: Counter[str] = Counter()
    for line in str(text).splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(part.split("=", 1) for part in line[line.index("{") + 1 : line.index("}")].split(","))
        verb, resource, sub = (labels[name].strip('"') for name in ("verb", "resource", "subresource"))
        if verb in _WRITES and resource not in _OURSELVES:
            counts[" ".join(filter(None, (verb, f"{resource}/{sub}" if sub else resource)))] += int(
                float(line.rsplit(" ", 1)[1])
            )
    return counts


def told_by(counts: Counter[str], count: int) -> str:
    """Writes per claim."""
    each = ", ".join(f"{name} {number / count:.2f}" for name, number in sorted(counts.items()) if number)
    return f"{sum(counts.values()) / count:.2f} ({each})"


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used so far."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


async def delete_all(server: ApiServer, resource: Resource, namespace: str) -> None:
    """Delete all of a kind in a namespace, many in one request, and wait until they are gone."""
    deadline, path = Deadline.after(300), resource.path(namespace)
    now = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
    while True:
        with suppress(TimeoutError):
            await asyncio.to_thread(server.request, "DELETE", path, now)
        _, left = await asyncio.to_thread(server.request, "GET", f"{path}?limit=1")
        if not left["items"]:
            return
        deadline.check(f"all of {path} to go away")
        await SYSTEM_CLOCK.sleep(0.5)
