"""The engine's door: a reverse gateway that keeps its address while the vLLM server behind it comes and goes."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import aiohttp
import msgspec
from aiohttp import web

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import WaitTimeoutError
from seatrial_rollout.engine.gate import Gate
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.engine.wire import decode_request, encode, read_vllm_answer, vllm_body

WAITED_HEADER = "X-Seatrial-Waited-Seconds"
"""On OpenAI answers: what `/generate` reports as `waited_seconds`."""

_MAX_SENDS = 3
"""A request that was cut off so often is taken to be what kills the server."""
_MAX_BODY_BYTES = 64 * 1024**2
_OPENAI_ROUTES = ("/v1/chat/completions", "/v1/completions")
_CUT_OFF = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The vLLM server of the moment."""

    session: aiohttp.ClientSession
    cache_salt: str
    """Changes with every load of weights, so that no request reads keys and values of other weights."""


class _UpstreamError(Exception):
    """vLLM failed while it handled the request: a server that dies says so with a 5xx first."""


class _RefusedError(Exception):
    """vLLM found fault with the request."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        super().__init__(status)


class _CutOffError(Exception):
    """Every attempt was cut off."""


class Gateway:
    """Holds requests while the gate is closed and sends again those that a dying server cut off.

    The time that a request spends in the queue, before the closed gate or on an attempt that was lost is reported
    with the answer, and so are the pauses that it sat through inside vLLM: a trial's clock stops for them.

    vLLM's admin routes do not exist here.
    """

    def __init__(
        self,
        *,
        token: str,
        gate: Gate,
        max_running: int,
        hold_seconds: float = 30.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a gateway that does not listen yet.

        Args:
            token: Bearer token that every request but `/health` needs.
            gate: Closed while vLLM may not generate.
            max_running: Requests sent to vLLM at once; the others queue here, where their wait is measured.
            hold_seconds: How long a request waits before the gate until its client is told to try elsewhere.
            clock: The time.
        """
        self._authorization = f"Bearer {token}".encode()
        self._gate = gate
        self._slots = asyncio.Semaphore(max_running)
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self.upstream: Upstream | None = None
        """Set before the gate is opened."""
        self.on_cut_off: Callable[[aiohttp.ClientSession], None] = lambda _: None
        """Told which server lost a request, before the request waits to be sent again."""
        self.num_queued = 0
        """Requests that wait for a slot."""

    async def start(self, host: str, port: int = 0) -> int:
        """Listen, and return the port."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/generate", self._generate)
        for path in _OPENAI_ROUTES:
            app.router.add_post(path, self._openai)
        # A client that hangs up cancels its handler, which in turn makes vLLM drop the request.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=4096, reuse_address=True).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening; requests in flight are dropped."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _deliver[T](self, send: Callable[[Upstream], Awaitable[T]]) -> tuple[T, float]:
        """Send through the gate, again if need be; the result, and the seconds in which it made no progress."""
        arrived = self._clock.now()
        async with self._slot():
            for _ in range(_MAX_SENDS):
                await self._gate.wait_open(Deadline.after(self._hold_seconds, self._clock))
                upstream = self._current_upstream()
                sent, closed = self._clock.now(), self._gate.closed_seconds
                try:
                    result = await send(upstream)
                except (*_CUT_OFF, _UpstreamError):
                    self.on_cut_off(upstream.session)
                    continue
                # Whatever was generated before the last send is lost: only the time after it made progress.
                return result, sent - arrived + self._gate.closed_seconds - closed
        raise _CutOffError

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self.num_queued += 1
        try:
            await self._slots.acquire()
        finally:
            self.num_queued -= 1
        try:
            yield
        finally:
            self._slots.release()

    def _current_upstream(self) -> Upstream:
        if self.upstream is None:
            raise RuntimeError("the gate was opened before there was a server")
        return self.upstream

    async def _generate(self, http_request: web.Request) -> web.Response:
        try:
            request = decode_request(await http_request.read())
        except msgspec.DecodeError as error:
            return web.json_response({"error": str(error)}, status=400)
        generation, waited = await self._deliver(partial(_generate_once, request))
        return web.Response(body=encode(replace(generation, waited_seconds=waited)), content_type="application/json")

    async def _openai(self, http_request: web.Request) -> web.StreamResponse:
        try:
            body: dict[str, Any] = msgspec.json.decode(await http_request.read(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            return web.json_response({"error": str(error)}, status=400)
        if body.get("stream"):
            response, _ = await self._deliver(partial(_stream, http_request, body))
            return response
        answer, waited = await self._deliver(partial(_post, http_request.path, body))
        return web.Response(body=answer, content_type="application/json", headers={WAITED_HEADER: f"{waited:.6f}"})

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.upstream is None or self.upstream.session.closed:
            return web.Response(status=503, text="vLLM is down")
        try:
            async with self.upstream.session.get("/metrics", timeout=aiohttp.ClientTimeout(total=10)) as response:
                return web.Response(body=await response.read(), content_type="text/plain", charset="utf-8")
        except (aiohttp.ClientError, TimeoutError):
            return web.Response(status=503, text="vLLM does not answer")

    async def _health(self, _: web.Request) -> web.Response:
        if self._gate.is_open:
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "holding", "reason": self._gate.reason}, status=503)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let in only who holds the token, and turn what went wrong into a status."""
        given = request.headers.get("Authorization", "").encode()
        if request.path != "/health" and not hmac.compare_digest(given, self._authorization):
            return web.json_response({"error": "wrong or missing bearer token"}, status=401)
        try:
            return await handler(request)
        except WaitTimeoutError as error:
            return web.json_response({"error": str(error)}, status=503, headers={"Retry-After": "1"})
        except _RefusedError as error:
            return web.Response(body=error.body, status=error.status, content_type="application/json")
        except _CutOffError:
            what = f"vLLM went down {_MAX_SENDS} times while it handled this request"
            return web.json_response({"error": what}, status=502)


async def _generate_once(request: GenerationRequest, upstream: Upstream) -> Generation:
    body = vllm_body(request, upstream.cache_salt)
    headers = {"Content-Type": "application/json"}
    async with upstream.session.post("/inference/v1/generate", data=body, headers=headers) as response:
        answer = await response.read()
    if response.status != 200:
        _raise_for_status(response.status, answer)
    generation = read_vllm_answer(answer)
    if generation.finish_reason not in {"stop", "length"}:
        raise _UpstreamError(generation.finish_reason)  # vLLM aborts what it holds when it shuts down
    return generation


async def _post(path: str, body: dict[str, Any], upstream: Upstream) -> bytes:
    async with upstream.session.post(path, json=_salted(body, upstream)) as response:
        answer = await response.read()
    if response.status != 200:
        _raise_for_status(response.status, answer)
    return answer


async def _stream(http_request: web.Request, body: dict[str, Any], upstream: Upstream) -> web.StreamResponse:
    """Pass server-sent events on as they come; what the client has seen cannot be sent again."""
    async with upstream.session.post(http_request.path, json=_salted(body, upstream)) as upstream_response:
        if upstream_response.status != 200:
            _raise_for_status(upstream_response.status, await upstream_response.read())
        response = web.StreamResponse(headers={"Content-Type": upstream_response.headers["Content-Type"]})
        await response.prepare(http_request)
        try:
            async for chunk in upstream_response.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except _CUT_OFF:
            if http_request.transport is not None:
                http_request.transport.abort()  # a truncated stream must not look like a whole one
    return response


def _salted(body: dict[str, Any], upstream: Upstream) -> dict[str, Any]:
    own = body.get("cache_salt")
    return body | {"cache_salt": f"{upstream.cache_salt}-{own}" if own else upstream.cache_salt}


def _raise_for_status(status: int, body: bytes) -> NoReturn:
    if status >= 500:
        raise _UpstreamError(body)
    raise _RefusedError(status, body)
