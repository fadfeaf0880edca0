"""The proxy's HTTP server: the APIs in front, agents' sessions behind."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

import msgspec
from aiohttp import web

from seatrial_rollout.tito.proxy.agent_session import AgentSession
from seatrial_rollout.tito.proxy.anthropic_messages import AnthropicMessages
from seatrial_rollout.tito.proxy.dialect import Dialect
from seatrial_rollout.tito.proxy.errors import InvalidRequestError, RequestError, UnknownKeyError
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Exchange
from seatrial_rollout.tito.proxy.openai_chat import OpenAIChat
from seatrial_rollout.tito.proxy.openai_responses import OpenAIResponses

MODEL_NAME = "policy"
"""What `/v1/models` lists; any other name is answered just the same."""

_DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": OpenAIChat(),
    "/v1/responses": OpenAIResponses(),
    "/v1/messages": AnthropicMessages(),
}
_COUNT_TOKENS = "/v1/messages/count_tokens"
_MAX_BODY_BYTES = 64 * 1024**2
_KEEP_ALIVE_SECONDS = 10.0

type _Handler = Callable[[web.Request, Dialect], Awaitable[web.StreamResponse]]


class Proxy:
    """Serves the sessions that are opened, each under a key of its own.

    A client shows its key as its API key, or has it in its base URL: `http://host/trials/KEY/v1`.

    While the engine works, a stream is kept alive by comments. Before the first one nothing is sent, so that an error
    comes with its status. A client that hangs up ends nothing: its turn goes on, for when it asks again.
    """

    def __init__(self, *, keep_alive_seconds: float = _KEEP_ALIVE_SECONDS) -> None:
        """Make a proxy that does not listen yet.

        Args:
            keep_alive_seconds: Time between two comments in a stream that waits.
        """
        self._keep_alive_seconds = keep_alive_seconds
        self._sessions: dict[str, AgentSession] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""
        """Where it listens."""

    def open(self, key: str, session: AgentSession) -> None:
        """Serve a session to who shows its key."""
        self._sessions[key] = session

    def close(self, key: str) -> None:
        """Serve it no more."""
        del self._sessions[key]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for prefix in ("", "/trials/{key}"):
            for path, dialect in _DIALECTS.items():
                app.router.add_post(prefix + path, partial(_guarded, self._answer, dialect))
            app.router.add_post(prefix + _COUNT_TOKENS, partial(_guarded, self._count_tokens, AnthropicMessages()))
            app.router.add_get(prefix + "/v1/models", partial(_guarded, self._models, OpenAIChat()))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=4096).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Listen no more, and end what is still asked."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        session = self._session(request)
        exchange = session.ask(await _read(request, dialect))
        if not exchange.request.stream:
            await session.answer(exchange)
            return await _send_whole(request, dialect, exchange)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(session.answer(exchange))
            with suppress(ConnectionError):
                while not await exchange.wait(self._keep_alive_seconds):
                    await _prepare(response, request)
                    await response.write(dialect.keep_alive)
        return await _send_stream(response, request, dialect, exchange)

    async def _count_tokens(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        session = self._session(request)
        return web.json_response({"input_tokens": session.count_tokens(await _read(request, dialect))})

    async def _models(self, request: web.Request, _: Dialect) -> web.StreamResponse:
        self._session(request)
        model = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "seatrial"}
        return web.json_response({"object": "list", "data": [model]})

    def _session(self, request: web.Request) -> AgentSession:
        key = request.match_info.get("key") or request.headers.get("X-API-Key")
        key = key or request.headers.get("Authorization", "").removeprefix("Bearer ")
        session = self._sessions.get(key)
        if session is None:
            raise UnknownKeyError
        return session


async def _guarded(handler: _Handler, dialect: Dialect, request: web.Request) -> web.StreamResponse:
    """Answer errors in the words of the API."""
    try:
        return await handler(request, dialect)
    except RequestError as error:
        return web.json_response(dialect.error(error), status=dialect.status(error))


async def _send_whole(request: web.Request, dialect: Dialect, exchange: Exchange) -> web.StreamResponse:
    answer = dialect.write(exchange.reply, exchange.request)
    response = web.Response(body=msgspec.json.encode(answer), content_type="application/json")
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write_eof()
        exchange.is_delivered = True
    return response


async def _send_stream(
    response: web.StreamResponse, request: web.Request, dialect: Dialect, exchange: Exchange
) -> web.StreamResponse:
    try:
        content = b"".join(dialect.events(exchange.reply, exchange.request))
    except RequestError as error:
        if not response.prepared:
            raise
        content = dialect.error_event(error)
    with suppress(ConnectionError):
        await _prepare(response, request)
        await response.write(content)
        await response.write_eof()
        exchange.is_delivered = True
    return response


async def _prepare(response: web.StreamResponse, request: web.Request) -> None:
    if not response.prepared:
        await response.prepare(request)


async def _read(request: web.Request, dialect: Dialect) -> ChatRequest:
    try:
        body: Any = msgspec.json.decode(await request.read())
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequestError("the body has to be a JSON object")
    retries = request.headers.get("X-Stainless-Retry-Count", "0")  # of the SDKs of OpenAI and Anthropic
    return replace(dialect.read(body), is_retry=retries not in {"", "0"})
