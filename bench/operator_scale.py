"""What many runs cost the operator: time from apply to RayJob, memory, and requests to the API server.

Real etcd, API server, controllers and KubeRay; nodes are KWOK's, and drivers are played by one process, each in a Train
stage that moves with every look. Runs arrive at a fixed rate, and all of them stay. The operator has the packages of
its image and the environment variables that the chart gives it.

    python -m bench.operator_scale [--runs 50 200 500] [--rate 2] [--steady SECONDS]
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hack.cluster import Cluster, Grade
from hack.cluster.layout import ROOT
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.pods import RUN_LABEL
from seatrial_operator.kube.client import KubeClient, connect
from seatrial_operator.kube.resources import RAY_JOBS, RLRUNS
from tests.charts import RELEASE, of_kind, render
from tests.cluster_runs import NAMESPACE, RUN, claim
from tests.image_environment import image_python
from tests.manifests import run_manifest
from tests.operator_process import OperatorProcess, Surroundings, operator_config, operator_process
from tests.ports import free_port
from tests.ray_stand_in import RayStandIn, ray_stand_in

_PODS_PER_NODE = 100
_PODS_PER_RUN = 4


@dataclass(frozen=True)
class Row:
    """What was measured with so many runs."""

    runs: int
    p50_seconds: float
    p99_seconds: float
    rss_mib: float
    """Resident memory at the end."""
    peak_mib: float
    """The most that it was since the operator started."""
    requests_per_start: float
    """Requests to the API server until a run's driver trains, watches aside."""
    requests_per_minute: float
    """Of one run that trains."""
    writes_per_minute: float
    """Status writes of one run that trains."""
    polls_per_second: float
    cpu_share: float
    """Of one core, while all runs train."""

    def __str__(self) -> str:
        return (
            f"| {self.runs} | {self.p50_seconds:.2f} | {self.p99_seconds:.2f} "
            f"| {self.rss_mib:.0f} | {self.peak_mib:.0f} | {self.requests_per_start:.1f} "
            f"| {self.requests_per_minute:.2f} | {self.writes_per_minute:.2f} "
            f"| {self.polls_per_second:.0f} | {100 * self.cpu_share:.0f} % |"
        )


HEAD = (
    "| runs | apply to RayJob p50 s | p99 s | RSS MiB | at its peak | requests per start "
    "| requests per run and minute | status writes per run and minute "
    "| driver polls per second | CPU |\n|" + "---|" * 10
)


def counters(port: int) -> dict[tuple[str, str], float]:
    """Requests so far, by verb and resource; the lease's, which do not grow with the runs, aside."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    return {
        (sample.labels["verb"], sample.labels["resource"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "seatrial_kube_requests_total" and sample.labels["resource"] != "leases"
    }


async def until_up(port: int) -> None:
    """Wait until the operator serves its metrics."""
    deadline = Deadline.after(120)
    while True:
        try:
            counters(port)
        except OSError:
            deadline.check("the operator's metrics")
            await SYSTEM_CLOCK.sleep(0.5)
        else:
            return


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process, now and at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Vm")}
    return sizes["VmRSS:"], sizes["VmHWM:"]


def as_deployed(folder: Path) -> Surroundings:
    """The packages of the operator's image, and the variables that the chart gives to its container."""
    deployment = next(one for one in of_kind(render(), "Deployment") if one["metadata"]["name"] == RELEASE)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    sources = os.pathsep.join(str(ROOT / part) for part in ("api", "operator"))
    return Surroundings(image_python("operator", folder / "image", is_compiled=True), {**given, "PYTHONPATH": sources})


async def arrive(client: KubeClient, names: list[str], rate: float) -> list[float]:
    """Make runs at a fixed rate; returns for each the time from its creation to that of its RayJob."""
    created: dict[str, float] = {}
    made: dict[str, float] = {}
    everyone = asyncio.Event()
    _, version = await client.list_at(RAY_JOBS, NAMESPACE)

    async def listen() -> None:
        async for kind, job in client.watch(RAY_JOBS, NAMESPACE, version, RUN_LABEL):
            if kind == "ADDED":
                made.setdefault(job["metadata"]["labels"][RUN_LABEL], SYSTEM_CLOCK.now())
            if len(made) == len(names):
                everyone.set()

    async with asyncio.TaskGroup() as tasks:
        listener = tasks.create_task(listen())
        for name in names:
            started = SYSTEM_CLOCK.now()
            created[name] = started
            await client.create(RLRUNS, NAMESPACE, run_manifest(**(RUN | {"metadata__name": name})))
            await SYSTEM_CLOCK.sleep(max(0.0, 1 / rate - (SYSTEM_CLOCK.now() - started)))
        await asyncio.wait_for(everyone.wait(), 300)
        listener.cancel()
    return [made[name] - created[name] for name in names]


async def until_all_train(client: KubeClient, count: int) -> None:
    """Wait until every run's driver answers."""
    while True:
        runs = await client.list(RLRUNS, NAMESPACE)
        if sum(run.get("status", {}).get("phase") == "Running" for run in runs) >= count:
            return
        await SYSTEM_CLOCK.sleep(2.0)


async def warm_up(ray: RayStandIn, port: int) -> None:
    """Start the first run and wait for it: the operator watches once that has a driver."""
    await until_up(port)
    async with connect() as client:
        ray.held.add("run-0")
        await arrive(client, ["run-0"], 1.0)
        await until_all_train(client, 1)


async def measure(ray: RayStandIn, operator: OperatorProcess, port: int, size: int, options: argparse.Namespace) -> Row:
    """Add runs up to `size`, let them train, and count."""
    pid = operator.process.pid
    async with connect() as client:
        known = len(await client.list(RLRUNS, NAMESPACE))
        names = [f"run-{index}" for index in range(known, size)]
        ray.held |= set(names)
        before = counters(port)
        delays = sorted(await arrive(client, names, options.rate))
        await until_all_train(client, size)
        started = counters(port)
        polls, cpu, began = ray.polls.total(), cpu_seconds(pid), SYSTEM_CLOCK.now()
        await SYSTEM_CLOCK.sleep(options.steady)
        seconds = SYSTEM_CLOCK.now() - began
        steady = counters(port)
        run_minutes = size * seconds / 60
        resident, peak = memory_mib(pid)
        return Row(
            runs=size,
            p50_seconds=statistics.median(delays),
            p99_seconds=delays[min(len(delays) - 1, int(0.99 * len(delays)))],
            rss_mib=resident,
            peak_mib=peak,
            requests_per_start=(sum(started.values()) - sum(before.values())) / len(names),
            requests_per_minute=(sum(steady.values()) - sum(started.values())) / run_minutes,
            writes_per_minute=(steady["apply", "rlruns"] - started["apply", "rlruns"]) / run_minutes,
            polls_per_second=(ray.polls.total() - polls) / seconds,
            cpu_share=(cpu_seconds(pid) - cpu) / seconds,
        )


def main() -> None:
    """Bring up a cluster, measure each size on top of the one before, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--rate", type=float, default=2.0, help="runs per second that arrive")
    parser.add_argument("--steady", type=float, default=120.0, help="seconds that all runs train while requests count")
    options = parser.parse_args()
    port = free_port()
    with ray_stand_in() as ray, tempfile.TemporaryDirectory() as folder:
        os.environ["HTTP_PROXY"] = ray.url
        with Cluster.start(Grade.CONTROLLERS) as cluster:
            del os.environ["HTTP_PROXY"]
            os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
            cluster.apply_crds(ROOT / "crds")
            nodes = -(-max(options.runs) * _PODS_PER_RUN // _PODS_PER_NODE)
            cluster.fake_nodes(nodes, cpu="1024", memory="8Ti", **{"nvidia.com/gpu": "1024"})
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *claim("runs"))
            ray.cluster = cluster
            settings = operator_config(ray.url, pollSeconds=5, resyncSeconds=300, metricsPort=port)
            within = as_deployed(Path(folder))
            with operator_process(Path(folder), cluster.kubeconfig, settings, within=within) as operator:
                print(HEAD, flush=True)
                asyncio.run(warm_up(ray, port))
                for size in options.runs:
                    try:
                        print(asyncio.run(measure(ray, operator, port, size, options)), flush=True)
                    except OSError as exc:
                        raise RuntimeError(f"the operator is gone: {operator.records()[-1]}") from exc
    print(json.dumps(vars(options)))


if __name__ == "__main__":
    main()
