"""The pages for the kubelet and for Prometheus."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from seatrial_operator.metrics.process import REGISTRY

type _Page = Callable[[web.Request], Awaitable[web.Response]]


@dataclass
class Readiness:
    """What `/readyz` answers."""

    waits_for: str = "starting"
    """What keeps the process from its work, in a sentence; empty once it is ready."""

    def wait_for(self, what: str) -> None:
        """The process is not ready, and this is why."""
        self.waits_for = what

    def reached(self) -> None:
        """The process is ready."""
        self.waits_for = ""


@asynccontextmanager
async def probes(*, health_port: int, metrics_port: int, readiness: Readiness) -> AsyncIterator[None]:
    """Serve `/healthz` and `/readyz` on one port and `/metrics` on the other.

    `/healthz` answers while the event loop turns: a kubelet that gets no answer restarts the process. `/readyz` says
    in words what the process waits for.
    """

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        waits_for = readiness.waits_for
        return web.Response(status=503, text=waits_for) if waits_for else web.Response(text="ok")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async with (
        _serve(health_port, {"/healthz": healthy, "/readyz": ready}),
        _serve(metrics_port, {"/metrics": metrics}),
    ):
        yield


@asynccontextmanager
async def _serve(port: int, pages: dict[str, _Page]) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in pages.items()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104  probes and Prometheus come from other pods
        yield
    finally:
        await runner.cleanup()
