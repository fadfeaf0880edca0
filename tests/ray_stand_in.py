"""What would run inside pods that KWOK only pretends to run: Ray's dashboard, and Seatrial's driver.

KubeRay's operator and ours are the real ones; they meet this server at the HTTP edge. KubeRay's comes through it as
through an HTTP proxy, for names of Services that nothing here resolves; ours by its `progressUrl`. Everything else,
pods and Services and their deletion, is done by the cluster itself.
"""

import asyncio
import base64
import json
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from seatrial_api.driver_request import DriverRequest, LiveSettings
from seatrial_api.playbook import ExitCode
from seatrial_api.stage_report import StageResult
from tests.run_world import Driver
from tests.threaded_server import threaded_server

_JOB_STATES = {None: "RUNNING", ExitCode.PASSED: "SUCCEEDED"}


@dataclass
class DriverProcess:
    """A driver in the head pod of a RayCluster."""

    run: str
    token: str
    request: DriverRequest
    driver: Driver
    is_heard: bool = False
    """Whether it told how it ended, after which it goes."""


@dataclass
class RayStandIn:
    """Plays every RayCluster of one test cluster; one driver takes a step whenever it is asked for its progress."""

    cluster: Cluster | None = None
    """Set once the cluster is up; it is started after this server, whose address it needs."""
    url: str = ""
    results: dict[str, dict[str, StageResult]] = field(default_factory=lambda: defaultdict(dict))
    """By run: what its stages come to."""
    held: set[str] = field(default_factory=set)
    """Runs whose drivers move on within their stage, and never to its end."""
    processes: dict[str, DriverProcess] = field(default_factory=dict)
    """By RayCluster."""
    submitted: list[str] = field(default_factory=list)
    """RayClusters to which a driver was submitted, in order."""
    reports: dict[str, dict[str, StageResult]] = field(default_factory=lambda: defaultdict(dict))
    """By run: what is kept in run storage."""
    clashes: list[str] = field(default_factory=list)
    """Submissions while another driver of the run had its pod."""
    polls: Counter[str] = field(default_factory=Counter)
    """By run: how often its drivers were asked for their progress."""
    _polled: threading.Condition = field(default_factory=threading.Condition)

    def driver(self, run: str) -> Driver:
        """The newest driver of a run."""
        return next(self.processes[name] for name in reversed(self.submitted) if self.processes[name].run == run).driver

    def await_polls(self, run: str, count: int) -> None:
        """Wait until a run's drivers were asked for their progress so often from now on."""
        goal = self.polls[run] + count
        with self._polled:
            if not self._polled.wait_for(lambda: self.polls[run] >= goal, timeout=60):
                raise TimeoutError(f"drivers of {run} were asked {self.polls[run]} times, not {goal}")

    def kill(self, run: str) -> None:
        """The head's process dies, and Ray's memory of its jobs with it."""
        name = next(name for name in reversed(self.submitted) if self.processes[name].run == run)
        self.processes.pop(name)
        self.submitted = [one for one in self.submitted if one != name]

    async def _submit(self, request: web.Request) -> web.Response:
        name, namespace = _ray_cluster(request)
        submission = await request.json()
        if name not in self.processes:
            try:
                process = await asyncio.to_thread(self._start, name, namespace)
            except CommandError as exc:
                return web.Response(status=503, text=str(exc))
            self.processes[name] = process
            self.submitted.append(name)
        return web.json_response({"job_id": submission.get("submission_id", name)})

    def _start(self, name: str, namespace: str) -> DriverProcess:
        assert self.cluster is not None
        secret = json.loads(
            self.cluster.kubectl("get", "secret", name.rpartition("-")[0], f"--namespace={namespace}", "--output=json")
        )
        data = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
        request = DriverRequest.model_validate_json(data["run.json"])
        run = request.run.metadata.name
        selector = f"--selector=seatrial.dev/run={run},seatrial.dev/role=head"
        heads = json.loads(self.cluster.kubectl("get", "pods", selector, f"--namespace={namespace}", "--output=json"))[
            "items"
        ]
        others = {pod["metadata"]["labels"]["ray.io/cluster"] for pod in heads} - {name}
        if others:
            self.clashes.append(f"{name} beside {others}")
        done = {key: result for key, result in self.reports[run].items() if key in request.stages}
        if request.resume:
            done = {key: result for key, result in done.items() if result is StageResult.PASSED}
        return DriverProcess(run, data["token"], request, Driver(request.stages, self.results[run], done))

    async def _job(self, request: web.Request) -> web.Response:
        name, _ = _ray_cluster(request)
        process = self.processes.get(name)
        if process is None:
            return web.Response(status=404, text="no such job")
        state = _JOB_STATES.get(process.driver.ended, "FAILED")
        return web.json_response({"submission_id": request.match_info["id"], "status": state})

    async def _stop_job(self, request: web.Request) -> web.Response:
        name, _ = _ray_cluster(request)
        process = self.processes.get(name)
        if process is not None and process.driver.ended is None:
            process.driver.ended = ExitCode.INTERRUPTED
        return web.json_response({"stopped": True})

    async def _progress(self, request: web.Request) -> web.Response:
        process = self._process(request)
        driver = process.driver
        with self._polled:
            self.polls[process.run] += 1
            self._polled.notify_all()
        if driver.is_silent or process.is_heard:
            raise web.HTTPServiceUnavailable
        if process.run not in self.held or driver.is_stopping:
            driver.turn()
        else:
            driver.step += 1
        kept = {StageResult.PASSED, StageResult.GATE_FAILED}
        self.reports[process.run] |= {key: result for key, result in driver.done.items() if result in kept}
        process.is_heard = driver.ended is not None
        return web.Response(text=driver.tell().model_dump_json(by_alias=True), content_type="application/json")

    async def _settings(self, request: web.Request) -> web.Response:
        self._process(request).driver.settings = LiveSettings.model_validate_json(await request.text())
        return web.json_response({})

    async def _stop(self, request: web.Request) -> web.Response:
        self._process(request).driver.is_stopping = True
        return web.json_response({})

    def _process(self, request: web.Request) -> DriverProcess:
        process = self.processes.get(request.match_info["cluster"])
        if process is None:
            raise web.HTTPServiceUnavailable
        if request.headers.get("Authorization") != f"Bearer {process.token}":
            raise web.HTTPUnauthorized
        return process

    def app(self) -> web.Application:
        """The server's routes."""
        app = web.Application()
        app.add_routes(
            [
                web.post("/api/jobs/", self._submit),
                web.get("/api/jobs/{id}", self._job),
                web.post("/api/jobs/{id}/stop", self._stop_job),
                web.get("/driver/{namespace}/{cluster}/v1/progress", self._progress),
                web.put("/driver/{namespace}/{cluster}/v1/settings", self._settings),
                web.post("/driver/{namespace}/{cluster}/v1/stop", self._stop),
            ]
        )
        return app


def _ray_cluster(request: web.Request) -> tuple[str, str]:
    """RayCluster and namespace, from the name of the head's Service that the request is for."""
    service, namespace = request.host.split(".")[:2]
    return service.removesuffix("-head-svc"), namespace


@contextmanager
def ray_stand_in() -> Iterator[RayStandIn]:
    """A server in a thread of its own, since several tests' event loops share it."""
    stand_in = RayStandIn()

    @asynccontextmanager
    async def app() -> AsyncIterator[web.Application]:
        yield stand_in.app()

    with threaded_server(app) as stand_in.url:
        yield stand_in
