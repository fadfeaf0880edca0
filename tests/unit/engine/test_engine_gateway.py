"""The gateway, before a real HTTP server that behaves as vLLM does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, override

import aiohttp
import pytest
from aiohttp import web

from seatrial_api.clock import Clock, Deadline
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.errors import EngineError, RequestRefusedError
from seatrial_rollout.engine.gate import Gate
from seatrial_rollout.engine.gateway import WAITED_HEADER, Gateway, Upstream
from seatrial_rollout.engine.generation import EngineAddress, Generation, GenerationRequest
from tests.clocks import HeldClock
from tests.leftovers import eventually
from tests.web_servers import web_server

TOKEN = "secret"  # noqa: S105  of this test alone
REQUEST = GenerationRequest(token_ids=[1, 2], max_tokens=8, temperature=0.7, stop_token_ids=[9], trial_id="t")
ANSWER = {
    "choices": [
        {
            "index": 0,
            "token_ids": [5, 6, 9],
            "finish_reason": "stop",
            "stop_reason": 9,
            "logprobs": {"content": [{"token_id": t, "logprob": -t / 10, "rank": 1} for t in (5, 6, 9)]},
            "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}],
        }
    ],
    "usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WatchedGate(Gate):
    """Says when a request has come up to it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.reached = asyncio.Event()

    @override
    async def wait_open(self, deadline: Deadline) -> None:
        self.reached.set()
        await super().wait_open(deadline)


@dataclass
class Rig:
    """A gateway, its parts, and the server behind it."""

    clock: HeldClock
    gate: WatchedGate
    gateway: Gateway
    address: EngineAddress
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies that reached the server behind the gateway."""

    @asynccontextmanager
    async def client(self, timeout_seconds: float = 10.0) -> AsyncIterator[EngineClient]:
        """A client of the gateway."""
        async with EngineClient([self.address], timeout_seconds=timeout_seconds) as client:
            yield client


@asynccontextmanager
async def rig(handler: Handler, *, max_running: int = 10, hold_seconds: float = 30.0) -> AsyncIterator[Rig]:
    """A gateway with an open gate before a server that answers by the handler."""
    clock = HeldClock()
    gate = WatchedGate(clock)
    gateway = Gateway(token=TOKEN, gate=gate, max_running=max_running, hold_seconds=hold_seconds, clock=clock)
    requests: list[dict[str, Any]] = []

    async def record(request: web.Request) -> web.StreamResponse:
        requests.append(await request.json())
        return await handler(request)

    app = web.Application()
    app.router.add_post("/{path:.*}", record)
    async with web_server(app, handler_cancellation=True) as host, aiohttp.ClientSession(f"http://{host}") as session:
        gateway.upstream = Upstream(session, cache_salt="salt-1")
        gate.open()
        address = EngineAddress("e", f"http://127.0.0.1:{await gateway.start('127.0.0.1')}", TOKEN)
        try:
            yield Rig(clock, gate, gateway, address, requests)
        finally:
            await gateway.stop()


async def answer(_: web.Request) -> web.Response:
    return web.json_response(ANSWER)


async def test_a_request_comes_back_with_tokens_logprobs_and_the_version_of_each() -> None:
    async with rig(answer) as r, r.client() as client:
        generation = await client.generate(REQUEST)

    assert generation == Generation(
        token_ids=[5, 6, 9],
        logprobs=[-0.5, -0.6, -0.9],
        weight_versions=[3, 4, 4],
        finish_reason="stop",
        waited_seconds=generation.waited_seconds,
        num_cached_tokens=1,
    )
    assert generation.waited_seconds < 1
    assert r.requests == [
        {
            "token_ids": [1, 2],
            "sampling_params": {
                "max_tokens": 8,
                "temperature": 0.7,
                "top_p": 1.0,
                "stop_token_ids": [9],
                "logprobs": 0,
                "detokenize": False,
            },
            "cache_salt": "salt-1",
        }
    ]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}])
async def test_nothing_is_served_without_the_token(headers: dict[str, str]) -> None:
    async with rig(answer) as r, aiohttp.ClientSession(r.address.url, headers=headers) as session:
        statuses = [(await session.post(path, json={})).status for path in ("/generate", "/v1/completions")]
        statuses.append((await session.get("/metrics")).status)

    assert statuses == [401, 401, 401]
    assert r.requests == []


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/update_weights", "/inference/v1/generate"])
async def test_admin_routes_do_not_exist_even_with_the_token(path: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with rig(answer) as r, aiohttp.ClientSession(r.address.url, headers=headers) as session:
        assert (await session.post(path, json={})).status == 404
    assert r.requests == []


async def test_a_closed_gate_holds_requests_and_their_wait_is_reported() -> None:
    async with rig(answer) as r, r.client() as client, asyncio.TaskGroup() as tasks:
        r.gate.close("new weights")
        generation = tasks.create_task(client.generate(REQUEST))
        await r.gate.reached.wait()
        assert r.requests == []
        r.clock.advance(7)
        r.gate.open()

    assert generation.result().waited_seconds == pytest.approx(7, abs=0.5)


async def test_a_pause_during_generation_is_reported() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        started.set()
        await go_on.wait()
        return await answer(request)

    async with rig(generate) as r, r.client() as client, asyncio.TaskGroup() as tasks:
        generation = tasks.create_task(client.generate(REQUEST))
        await started.wait()
        r.clock.advance(100)  # generating: charged
        r.gate.close("new weights")
        r.clock.advance(3)
        r.gate.open()
        r.clock.advance(100)
        go_on.set()

    assert generation.result().waited_seconds == pytest.approx(3, abs=0.5)


async def test_a_request_that_is_cut_off_is_sent_again_and_the_lost_time_is_reported() -> None:
    lost: list[aiohttp.ClientSession] = []

    async def die_once(request: web.Request) -> web.Response:
        if len(r.requests) == 1:
            r.clock.advance(20)
            assert request.transport is not None
            request.transport.abort()
        return await answer(request)

    async with rig(die_once) as r, r.client() as client:
        r.gateway.on_cut_off = lost.append
        generation = await client.generate(REQUEST)

    assert generation.token_ids == [5, 6, 9]
    assert generation.waited_seconds == pytest.approx(20, abs=0.5)
    assert len(lost) == 1
    assert len(r.requests) == 2


@pytest.mark.parametrize("finish_reason", ["abort", "error"])
async def test_what_a_server_aborts_while_it_shuts_down_is_sent_again(finish_reason: str) -> None:
    aborted = {**ANSWER, "choices": [{**ANSWER["choices"][0], "finish_reason": finish_reason}]}  # type: ignore[index,dict-item]  # a literal

    async def abort_once(request: web.Request) -> web.Response:
        return web.json_response(aborted) if len(r.requests) == 1 else await answer(request)

    async with rig(abort_once) as r, r.client() as client:
        assert (await client.generate(REQUEST)).finish_reason == "stop"
    assert len(r.requests) == 2


async def test_a_request_that_brings_the_server_down_again_and_again_is_given_up() -> None:
    async def die(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async with rig(die) as r, r.client() as client:
        with pytest.raises(EngineError, match="went down 3 times"):
            await client.generate(REQUEST)
    assert len(r.requests) == 3


async def test_a_request_that_vllm_refuses_is_refused_once() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": "prompt too long"}, status=400)

    async with rig(refuse) as r, r.client() as client:
        with pytest.raises(RequestRefusedError, match="prompt too long"):
            await client.generate(REQUEST)
    assert len(r.requests) == 1


async def test_a_request_that_is_held_too_long_says_why() -> None:
    async with rig(answer, hold_seconds=0.01) as r, r.client(timeout_seconds=0.3) as client:
        r.gate.close("vLLM is being restarted")
        with pytest.raises(EngineError, match="vLLM is being restarted"):
            await client.generate(REQUEST)


async def test_requests_above_the_limit_queue_in_the_gateway_and_report_it() -> None:
    go_on = asyncio.Semaphore(0)
    arrived = asyncio.Semaphore(0)

    async def generate(request: web.Request) -> web.Response:
        arrived.release()
        await go_on.acquire()
        return await answer(request)

    async with rig(generate, max_running=1) as r, r.client() as client, asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(client.generate(REQUEST)) for _ in range(2)]
        await arrived.acquire()
        await eventually(lambda: r.gateway.num_queued == 1, what="the second request in the queue")
        assert len(r.requests) == 1
        r.clock.advance(5)
        go_on.release()
        await arrived.acquire()
        go_on.release()

    assert sorted(round(task.result().waited_seconds) for task in both) == [0, 5]


async def test_a_client_that_hangs_up_frees_the_server() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return await answer(request)

    async with rig(generate) as r, r.client() as client, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(client.generate(REQUEST))
        await started.wait()
        task.cancel()
        await asyncio.wait_for(cancelled.wait(), 10)


async def test_openai_requests_pass_with_the_salt_of_the_weights() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path})

    body = {"messages": [], "cache_salt": "mine"}
    async with (
        rig(echo) as r,
        aiohttp.ClientSession(r.address.url, headers=_authorized(r)) as session,
        session.post("/v1/chat/completions", json=body) as response,
    ):
        assert await response.json() == {"path": "/v1/chat/completions"}
        assert float(response.headers[WAITED_HEADER]) < 1
    assert r.requests == [{"messages": [], "cache_salt": "salt-1-mine"}]


async def test_streams_pass_as_they_come() -> None:
    seen = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await asyncio.wait_for(seen.wait(), 10)  # the client has the first part before there is a second
        await response.write(b"data: [DONE]\n\n")
        return response

    async with (
        rig(stream) as r,
        aiohttp.ClientSession(r.address.url, headers=_authorized(r)) as session,
        session.post("/v1/completions", json={"stream": True}) as response,
    ):
        first = await response.content.readany()
        seen.set()
        rest = await response.content.read()

    assert (first, rest) == (b"data: 1\n\n", b"data: [DONE]\n\n")


async def test_a_stream_that_is_cut_off_does_not_look_whole() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with rig(stream) as r, aiohttp.ClientSession(r.address.url, headers=_authorized(r)) as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.post("/v1/completions", json={"stream": True}) as response:
                await response.content.read()


async def test_the_client_falls_back_to_the_next_engine() -> None:
    nobody = EngineAddress("gone", "http://127.0.0.1:9", TOKEN)
    async with rig(answer) as r, EngineClient([nobody, r.address], timeout_seconds=10) as client:
        assert (await client.generate(REQUEST)).token_ids == [5, 6, 9]


async def test_the_client_says_what_it_tried() -> None:
    nobody = EngineAddress("gone", "http://127.0.0.1:9", TOKEN)
    async with EngineClient([nobody], timeout_seconds=0.3) as client:
        with pytest.raises(EngineError, match="gone: Cannot connect"):
            await client.generate(REQUEST)


async def test_the_client_without_engines_fails_at_once() -> None:
    async with EngineClient([], timeout_seconds=100) as client:
        with pytest.raises(EngineError, match="there is no engine"):
            await client.generate(REQUEST)


def _authorized(r: Rig) -> dict[str, str]:
    return {"Authorization": f"Bearer {r.address.token}"}
