"""The driver's HTTP server: `/metrics` for Prometheus, `/v1/progress` for launchers, `/healthz` for probes.

A launcher elsewhere holds a token, which it sends as `Authorization: Bearer <token>` with every request below `/v1`,
and may do more:

    GET  /v1/progress   200, `Progress`
    PUT  /v1/settings   `LiveSettings`: 200 with those in force, or 400 with what is wrong with them
    POST /v1/stop       202; the driver saves and ends like after SIGTERM

Without a token there is nothing to be changed: agents in plain processes reach this port as well.
"""

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from seatrial_api.driver_request import LiveSettings
from seatrial_api.errors import InvalidInputError
from seatrial_api.progress import Progress


@dataclass(frozen=True, slots=True)
class Remote:
    """What a launcher that is not on this machine may do."""

    token: str
    """What it shows to be let in."""
    change: Callable[[bytes], LiveSettings]
    """Takes over settings, given as JSON; raises `InvalidInputError`."""
    stop: Callable[[], None]
    """Asks the driver to end."""
    was_told: Callable[[], None]
    """Called once it has read how the driver ended."""


@asynccontextmanager
async def serve(
    host: str, port: int, progress: Callable[[], Progress], registry: CollectorRegistry, remote: Remote | None = None
) -> AsyncIterator[str]:
    """Serve while the block runs; yields the base URL.

    Args:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        progress: Makes the current snapshot.
        registry: Metrics to expose.
        remote: What a launcher elsewhere may do; none lets everybody read and nobody change.
    """

    async def get_progress(request: web.Request) -> web.StreamResponse:
        snapshot = progress()
        response = web.json_response(text=snapshot.model_dump_json(by_alias=True))
        if remote and snapshot.ended is not None:
            await response.prepare(request)
            await response.write_eof()
            remote.was_told()
        return response

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def get_health(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[_admitting(remote.token)] if remote else [])
    app.add_routes(
        [web.get("/v1/progress", get_progress), web.get("/metrics", get_metrics), web.get("/healthz", get_health)]
    )
    if remote:
        app.add_routes(_control_routes(remote))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound_host, bound_port = runner.addresses[0][:2]
        yield f"http://{bound_host}:{bound_port}"
    finally:
        await runner.cleanup()


def _control_routes(remote: Remote) -> list[web.RouteDef]:
    async def put_settings(request: web.Request) -> web.Response:
        try:
            settings = remote.change(await request.read())
        except InvalidInputError as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        return web.json_response(text=settings.model_dump_json(by_alias=True))

    async def post_stop(_: web.Request) -> web.Response:
        remote.stop()
        return web.Response(status=HTTPStatus.ACCEPTED)

    return [web.put("/v1/settings", put_settings), web.post("/v1/stop", post_stop)]


def _admitting(token: str) -> Middleware:
    """Lets nobody without the token near `/v1`."""
    wanted = f"Bearer {token}".encode()

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path.startswith("/v1/") and not hmac.compare_digest(shown, wanted):
            return _refusal(HTTPStatus.UNAUTHORIZED, "send the run's token as `Authorization: Bearer <token>`")
        return await handler(request)

    return admit


def _refusal(status: HTTPStatus, error: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else None
    return web.json_response({"error": error}, status=status, headers=headers)
