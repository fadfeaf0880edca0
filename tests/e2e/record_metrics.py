"""Record `/metrics` of real processes: the series that dashboards and alert rules are tested against.

Usage: python -m tests.e2e.record_metrics driver|operator|pool|broker

`driver` runs the small quickstart, two to three minutes on two cores, and scrapes it in the Train stage and in the last
evaluation. `operator` runs the operator against a control plane of its own, half a minute, and scrapes it twice. `pool`
serves a tiny model and scrapes after some requests and after more. `broker` hands out sandboxes that KWOK plays, half a
minute, and scrapes after some claims and after more. Each writes tests/data/metrics/<process>-early.prom
and -late.prom. Run it again when a process exports something new.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray import cluster_utils as ray_cluster_utils

from hack.cluster import Cluster, Grade
from hack.cluster.layout import ROOT, SHARE
from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.progress import Progress
from seatrial_api.serving import TOKEN_VARIABLE, ServingRequest
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_api.spec.rollout import EngineSpec
from tests.brokers import Brokers, Namespace, broker_client, broker_config
from tests.e2e.local_run import LocalRun, write_manifest
from tests.operator_objects import CLAIM, POOL, WORLD, small_run
from tests.operator_process import operator_config, operator_process
from tests.prometheus import RECORDED as TARGET
from tests.prometheus import free_port
from tests.tiny_model import CONTEXT_LENGTH, write_tiny_model

_STEPS = 6


def record_driver() -> None:
    """Run the small quickstart and scrape its driver twice.

    Raises:
        SystemExit: if the run does not end well.
    """
    with tempfile.TemporaryDirectory(prefix="seatrial-record-") as folder:
        run = LocalRun(_manifest(Path(folder)))
        try:
            process = run.start()
            for age, condition in (("early", _trains), ("late", _evaluates_the_trained)):
                run.wait_for(process, condition)
                _record(f"driver-{age}", json.loads((run.folder / "driver.json").read_text())["url"])
            code, output = run.finish(process)
        finally:
            run.end()
    if code != 0:
        raise SystemExit(f"the run ended with {code}; what was recorded is not a healthy run:\n{output}")


def record_operator() -> None:
    """Give an operator one object of each kind, scrape it, then give it more runs and scrape it again."""
    with Cluster.start(Grade.CONTROL_PLANE) as cluster, tempfile.TemporaryDirectory() as folder:
        for path in (ROOT / "crds", SHARE / "kuberay"):
            cluster.apply_crds(path)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        cluster.apply(CLAIM, POOL, WORLD, small_run("first"))
        port = free_port()
        config = operator_config("http://127.0.0.1:9", metricsPort=port, namespaces=["team-a"])
        with operator_process(Path(folder), cluster.kubeconfig, config):
            for age, runs in (("early", {"first"}), ("late", {"second", "third"})):
                cluster.apply(*map(small_run, runs))
                _wait_for_jobs(cluster, {f"{name}-s0-a0" for name in runs})
                _record(f"operator-{age}", f"http://127.0.0.1:{port}")


def record_pool() -> None:
    """Serve a tiny model as a pool does, and scrape it after some requests and after more.

    Raises:
        RuntimeError: if the pool does not serve.
    """
    with tempfile.TemporaryDirectory(prefix="pool-") as name, ray_cluster(Path(name)) as address:
        folder = Path(name)
        model = write_tiny_model(folder / "model", seed=1)
        request = ServingRequest(
            pool="office",
            model=ModelSpec(
                source=Source(path=model.name), dtype="float32", context_length=ContextLength(train=CONTEXT_LENGTH)
            ),
            engines=EngineSpec(max_num_seqs=16, kv_cache_gib=0.125),
            base_dir=folder,
        )
        (folder / "pool.json").write_text(request.model_dump_json(by_alias=True))
        port = free_port()
        words = (
            "-m",
            "seatrial_rollout.serving",
            "--request",
            str(folder / "pool.json"),
            "--logs",
            str(folder / "logs"),
        )
        process = subprocess.Popen(
            [sys.executable, *words, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, TOKEN_VARIABLE: "token", "RAY_ADDRESS": address},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_healthy(url)
            for age in ("early", "late"):
                for _ in range(8):
                    _complete(url)
                _record(f"pool-{age}", url)
        finally:
            process.terminate()
            process.wait(60)


def record_broker() -> None:
    """Let a broker keep a few sandboxes warm, and scrape it after some claims and after more."""
    with Cluster.start(Grade.CONTROLLERS) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.apply_crds(ROOT / "crds")
        cluster.fake_nodes(1, cpu="500", memory="2Ti", **{"ephemeral-storage": "9Ti"})
        team, port = Namespace(cluster, "team-a"), free_port()
        team.make()
        team.world("office")
        team.pool("run", {"world": "office", "warmMin": 3})
        brokers = Brokers(Path(folder), cluster.kubeconfig, {**broker_config(), "metricsPort": port})
        try:
            brokers.start()
            asyncio.run(_claim(brokers, team.token(), port))
        finally:
            brokers.end()


async def _claim(brokers: Brokers, token: str, port: int) -> None:
    async with broker_client(brokers.address, token) as client:
        for age, trials in (("early", range(4)), ("late", range(4, 12))):
            for trial in trials:
                await client.claim("office", f"trial-{trial}")
            await client.release(f"trial-{trials[0]}")
            await client.until("office", lambda stats: stats.warm == 3 and stats.starting == 0)
            await SYSTEM_CLOCK.sleep(2)  # until the counts are told
            await asyncio.to_thread(_record, f"broker-{age}", f"http://127.0.0.1:{port}")


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """A Ray with a head and one node for an engine; yields its address."""
    small = {"object_store_memory": 2**27}
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(folder / "ray"), **small}
    cluster = ray_cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, resources={"seatrial_rollout": 1}, **small)
        yield cluster.address
    finally:
        cluster.shutdown()


def _wait_until_healthy(url: str) -> None:
    deadline, pause = Deadline.after(300), threading.Event()
    while True:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=10):  # noqa: S310  our own server
                return
        except OSError:
            deadline.check("the pool to serve")
            pause.wait(0.5)


def _complete(url: str) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
    headers = {"Authorization": "Bearer token", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  our own server
        answer.read()


def _wait_for_jobs(cluster: Cluster, names: set[str]) -> None:
    deadline, pause = Deadline.after(60), threading.Event()
    query = ("get", "rayjobs", "-n", "team-a", "-o", "jsonpath={.items[*].metadata.name}")
    while not names <= set(cluster.kubectl(*query).split()):
        deadline.check("the operator to make the runs' jobs")
        pause.wait(0.2)
    pause.wait(5)  # some time in the steady state


def _manifest(folder: Path) -> Path:
    return write_manifest(
        folder,
        stages=[
            {"name": "preflight", "preflight": {"tasks": 8, "varianceTasks": 2, "maxVarianceTries": 4}},
            {"name": "train", "train": {"steps": _STEPS, "validateEverySteps": 3}},
            {"name": "after", "evaluate": {"checkpoint": "Last"}},
        ],
        cost={"promptMillionTokens": 0.3, "cachedPromptMillionTokens": 0.03, "completionMillionTokens": 1.2},
    )


def _trains(progress: Progress) -> bool:
    return progress.stage == "train" and progress.step >= 2


def _evaluates_the_trained(progress: Progress) -> bool:
    return progress.stage == "after" and progress.step >= 4


def _record(name: str, url: str) -> None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310  our own server
        (TARGET / f"{name}.prom").write_bytes(answer.read())


if __name__ == "__main__":
    recorders = {
        "driver": record_driver,
        "operator": record_operator,
        "pool": record_pool,
        "broker": record_broker,
    }
    recorders[sys.argv[1]]()
