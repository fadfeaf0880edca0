"""The pool's HTTP endpoint: OpenAI's routes and the token-exact one, over all engines."""

import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol

import aiohttp
import msgspec
from aiohttp import web

from seatrial_api.serving import REPORT_PATH, PoolReport
from seatrial_rollout.engine.gateway import WAITED_HEADER
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.launch import SERVED_MODEL_NAME
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.serving.balancer import Balancer
from seatrial_rollout.serving.telemetry import Telemetry

SESSION_HEADER = "X-Session-ID"
"""Requests with one value are answered by one engine, which has their prefix in its cache."""

_ROUTES = {"/v1/chat/completions": "chat_completions", "/v1/completions": "completions", "/generate": "generate"}
"""Paths that go to an engine, and the name that metrics have for them."""
_OPEN_PATHS = ("/healthz", "/metrics")
_MAX_BODY_BYTES = 64 * 1024**2
_CONNECT_SECONDS = 10.0
_ELSEWHERE = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE})
"""Answers of an engine that holds its requests, or was replaced: another one may do."""
_KEPT_HEADERS = ("Content-Type", WAITED_HEADER)


class _SessionFields(msgspec.Struct):
    """Where a body may say what it belongs to: OpenAI's two fields, and ours."""

    prompt_cache_key: str | None = None
    user: str | None = None
    trial_id: str | None = None


_read_session = msgspec.json.Decoder(_SessionFields).decode


class _ElsewhereError(Exception):
    """One engine could not answer, and nothing was sent to the client yet."""


class Engines(Protocol):
    """The engines, as far as the endpoint knows them."""

    def addresses(self) -> list[EngineAddress]:
        """Where those that are up are reached."""
        ...

    def report(self) -> PoolReport:
        """How every engine is."""
        ...

    def metrics(self) -> PoolMetrics:
        """What all engines do and did."""
        ...


class Endpoint:
    """Routes each request to one engine, and to the next one should that engine be lost before it answered.

    `/v1/*` and `/generate` need the pool's bearer token; `/healthz` and `/metrics` are open.
    """

    def __init__(self, engines: Engines, telemetry: Telemetry, *, token: str, context_length: int) -> None:
        """Make an endpoint that does not listen yet.

        Args:
            engines: The engines.
            telemetry: Counts requests and makes the metrics page.
            token: What clients show.
            context_length: Tokens of prompt and output together, told at `/v1/models`.
        """
        self._engines = engines
        self._telemetry = telemetry
        self._authorization = f"Bearer {token}".encode()
        self._context_length = context_length
        self._balancer = Balancer()
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        app = web.Application(middlewares=[self._admit], client_max_size=_MAX_BODY_BYTES)
        app.add_routes(
            [
                *(web.post(path, self._forward) for path in _ROUTES),
                web.get("/v1/models", self._models),
                web.get(REPORT_PATH, self._report),
                web.get("/healthz", self._health),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=4096).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening; requests in flight are dropped."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        with self._telemetry.timed(_ROUTES[request.path]) as outcome:
            response = await self._try_engines(request)
            outcome.code = response.status
            return response

    async def _try_engines(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        session = _session_of(request, body)
        self._balancer.update(self._engines.addresses())
        failures: list[str] = []
        for address in self._balancer.order(session):
            with self._balancer.serving(address.engine_id, session):
                try:
                    return await self._relay(request, body, address)
                except _ElsewhereError as error:
                    failures.append(f"{address.engine_id}: {error}")
        what = f"no engine can answer now ({'; '.join(failures) or 'there is none yet'})"
        headers = {"Retry-After": "2"}
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, what, headers)

    async def _relay(self, request: web.Request, body: bytes, address: EngineAddress) -> web.StreamResponse:
        """Send a request to an engine and its answer back.

        Raises:
            _ElsewhereError: the engine cannot answer, and the client knows nothing of it.
        """
        if self._session is None:
            raise RuntimeError("the endpoint was not started")
        headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}
        try:
            async with self._session.post(address.url + request.path, data=body, headers=headers) as answer:
                if answer.status in _ELSEWHERE:
                    raise _ElsewhereError(f"HTTP {answer.status}: {(await answer.text())[:200]}")
                kept = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
                if answer.content_type != "text/event-stream":
                    return web.Response(status=answer.status, body=await answer.read(), headers=kept)
                return await _stream(request, answer, kept)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _ElsewhereError(str(error) or type(error).__name__) from error

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": SERVED_MODEL_NAME, "object": "model", "created": 0, "owned_by": "seatrial"}
        return web.json_response({"object": "list", "data": [model | {"max_model_len": self._context_length}]})

    async def _report(self, _: web.Request) -> web.Response:
        return web.json_response(text=self._engines.report().model_dump_json(by_alias=True))

    async def _health(self, _: web.Request) -> web.Response:
        if self._engines.addresses():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "no engine is up yet"}, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, _: web.Request) -> web.Response:
        content, content_type = self._telemetry.page(self._engines.report(), self._engines.metrics())
        return web.Response(body=content, headers={"Content-Type": content_type})

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path not in _OPEN_PATHS and not hmac.compare_digest(shown, self._authorization):
            what = "send the pool's token as `Authorization: Bearer <token>`"
            return _refusal(HTTPStatus.UNAUTHORIZED, what, {"WWW-Authenticate": "Bearer"})
        return await handler(request)


async def _stream(request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]) -> web.StreamResponse:
    """Pass server-sent events on as they come; what the client has seen cannot be taken back."""
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
    except (aiohttp.ClientError, OSError):
        if request.transport is not None:
            request.transport.abort()  # a truncated stream must not look like a whole one
    return response


def _session_of(request: web.Request, body: bytes) -> str:
    """What a request belongs to; empty if it does not say."""
    if header := request.headers.get(SESSION_HEADER):
        return header
    with suppress(msgspec.DecodeError):  # the engine says what is wrong with the body
        fields = _read_session(body)
        return fields.prompt_cache_key or fields.trial_id or fields.user or ""
    return ""


def _refusal(status: HTTPStatus, error: str, headers: dict[str, str]) -> web.Response:
    """An error in the form that OpenAI's clients read."""
    return web.json_response({"error": {"message": error, "code": status.value}}, status=status, headers=headers)
