"""The endpoint of a pool on its own, over engines that answer as a test says."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.serving import PoolReport
from seatrial_rollout.engine.gateway import WAITED_HEADER
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.serving.balancer import Balancer
from seatrial_rollout.serving.endpoint import SESSION_HEADER, Endpoint
from seatrial_rollout.serving.telemetry import Telemetry
from tests.clocks import HeldClock
from tests.web_servers import web_server

type Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN = {"Authorization": "Bearer pool-token"}
CHAT = "/v1/chat/completions"


def address(name: str, url: str = "") -> EngineAddress:
    """Where an engine is."""
    return EngineAddress(name, url, f"{name}-token")


def best(balancer: Balancer, session: str = "") -> str:
    """The engine that is tried first."""
    return balancer.order(session)[0].engine_id


def test_a_request_goes_to_the_engine_with_the_fewest() -> None:
    balancer = Balancer()
    balancer.update([address("a"), address("b")])
    with balancer.serving("a", ""):
        assert best(balancer) == "b"
        with balancer.serving("b", ""), balancer.serving("b", ""):
            assert best(balancer) == "a"
    assert best(balancer) == "a"


def test_a_session_stays_with_its_engine_whatever_the_load() -> None:
    balancer = Balancer()
    balancer.update([address("a"), address("b")])
    with balancer.serving("b", "s"), balancer.serving("b", ""):
        assert best(balancer, "s") == "b"
        assert best(balancer, "other") == "a"
    assert [one.engine_id for one in balancer.order("s")] == ["b", "a"]


def test_a_session_whose_engine_is_gone_moves() -> None:
    balancer = Balancer()
    balancer.update([address("a"), address("b")])
    with balancer.serving("b", "s"):
        pass
    balancer.update([address("a")])
    assert best(balancer, "s") == "a"


def test_the_session_unused_for_longest_is_forgotten() -> None:
    balancer = Balancer(max_sessions=2)
    balancer.update([address("a"), address("b")])
    for session in ("old", "new", "old", "newest"):
        with balancer.serving("b", session):
            pass
    assert [best(balancer, session) for session in ("old", "new", "newest")] == ["b", "a", "b"]


@dataclass
class FakeEngines:
    """Engines on real sockets that answer as told."""

    answers: dict[str, Answer] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Engine, path and token of each request."""

    def addresses(self) -> list[EngineAddress]:
        """Where they are."""
        return [address(name, url) for name, url in self.urls.items()]

    def report(self) -> PoolReport:
        """All are ready."""
        return PoolReport(engines=[EngineStatus(name=name, state="Ready", weight_version=0) for name in self.urls])

    def metrics(self) -> PoolMetrics:
        """What they did."""
        return PoolMetrics(kv_usage=0.5, running=3, prompt_tokens_total=10, cached_tokens_total=4)


class Cluster:
    """An endpoint and its engines."""

    def __init__(self) -> None:
        self.engines = FakeEngines()
        self.endpoint = Endpoint(
            self.engines,
            Telemetry(HeldClock()),
            token="pool-token",  # noqa: S106  of a pool that lives for one test
            context_length=128,
        )
        self.url = ""
        self._servers = AsyncExitStack()

    async def start(self) -> None:
        """Listen."""
        self.url = f"http://127.0.0.1:{await self.endpoint.start('127.0.0.1', 0)}"

    async def add(self, name: str, answer: Answer) -> None:
        """Start an engine."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self.engines.seen.append((name, request.path, request.headers["Authorization"]))
            return await answer(request)

        app = web.Application()
        app.router.add_post("/{path:.*}", handle)
        self.engines.urls[name] = f"http://{await self._servers.enter_async_context(web_server(app))}"

    async def stop(self) -> None:
        """End everything."""
        await self.endpoint.stop()
        await self._servers.aclose()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """An endpoint without engines."""
    cluster = Cluster()
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that holds the token."""
    async with aiohttp.ClientSession(cluster.url, headers=TOKEN) as session:
        yield session


async def fine(_: web.Request) -> web.Response:
    """Answer."""
    return web.json_response({"ok": True}, headers={WAITED_HEADER: "0.5"})


async def holding(_: web.Request) -> web.Response:
    """An engine that loads weights."""
    return web.json_response({"error": "it is being restarted"}, status=503)


async def cut_off(request: web.Request) -> web.Response:
    """An engine that dies."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def refusing(_: web.Request) -> web.Response:
    """An engine that finds fault with the request."""
    return web.json_response({"error": "max_tokens is too large"}, status=400)


async def test_a_request_reaches_an_engine_with_the_engines_own_token(
    cluster: Cluster, http: aiohttp.ClientSession
) -> None:
    await cluster.add("a", fine)
    async with http.post(CHAT, json={}) as answer:
        assert (answer.status, await answer.json(), answer.headers[WAITED_HEADER]) == (200, {"ok": True}, "0.5")
    assert cluster.engines.seen == [("a", CHAT, "Bearer a-token")]


@pytest.mark.parametrize("broken", [holding, cut_off])
async def test_another_engine_answers_for_one_that_cannot(
    cluster: Cluster, http: aiohttp.ClientSession, broken: Answer
) -> None:
    await cluster.add("a", broken)
    await cluster.add("b", fine)
    async with http.post("/generate", json={}) as answer:
        assert answer.status == 200
    assert [name for name, _, _ in cluster.engines.seen] == ["a", "b"]


async def test_a_refusal_is_the_clients_to_see(cluster: Cluster, http: aiohttp.ClientSession) -> None:
    await cluster.add("a", refusing)
    await cluster.add("b", fine)
    async with http.post(CHAT, json={}) as answer:
        assert (answer.status, await answer.json()) == (400, {"error": "max_tokens is too large"})


async def test_without_an_engine_the_client_is_told_to_come_again(
    cluster: Cluster, http: aiohttp.ClientSession
) -> None:
    async with http.post(CHAT, json={}) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert "there is none yet" in (await answer.json())["error"]["message"]
    await cluster.add("a", holding)
    async with http.post(CHAT, json={}) as answer:
        assert "it is being restarted" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({SESSION_HEADER: "s"}, {}),
        ({}, {"prompt_cache_key": "s"}),
        ({}, {"user": "s"}),
        ({}, {"trial_id": "s"}),
        ({SESSION_HEADER: "s"}, {"user": "other"}),
    ],
)
async def test_a_session_goes_where_it_was(
    cluster: Cluster, http: aiohttp.ClientSession, headers: dict[str, str], body: dict[str, str]
) -> None:
    await cluster.add("b", fine)
    async with http.post(CHAT, json=body, headers=headers):
        pass
    await cluster.add("a", fine)
    cluster.engines.urls = dict(sorted(cluster.engines.urls.items()))
    async with http.post(CHAT, json=body, headers=headers), http.post(CHAT, json={"user": "stranger"}):
        pass
    assert [name for name, _, _ in cluster.engines.seen] == ["b", "b", "a"]


async def test_a_stream_passes_through_as_it_comes(cluster: Cluster, http: aiohttp.ClientSession) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    await cluster.add("a", stream)
    async with http.post(CHAT, json={"stream": True}) as answer:
        assert answer.content_type == "text/event-stream"
        assert await answer.read() == b"data: 1\n\ndata: [DONE]\n\n"


async def test_a_stream_that_was_cut_off_does_not_look_whole(cluster: Cluster, http: aiohttp.ClientSession) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    await cluster.add("a", stream)
    with pytest.raises(aiohttp.ClientError):
        async with http.post(CHAT, json={"stream": True}) as answer:
            await answer.read()


@pytest.mark.parametrize("path", [CHAT, "/generate", "/v1/models", "/v1/pool"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "pool-token"}])
async def test_nothing_is_told_without_the_token(cluster: Cluster, path: str, headers: dict[str, str]) -> None:
    await cluster.add("a", fine)
    method = "GET" if path in {"/v1/models", "/v1/pool"} else "POST"
    async with aiohttp.request(method, cluster.url + path, headers=headers) as answer:
        assert answer.status == 401
    assert cluster.engines.seen == []


async def test_the_report_and_the_model_are_told(cluster: Cluster, http: aiohttp.ClientSession) -> None:
    await cluster.add("a", fine)
    async with http.get("/v1/pool") as answer:
        assert PoolReport.model_validate_json(await answer.read()).engines[0].name == "a"
    async with http.get("/v1/models") as answer:
        model = (await answer.json())["data"][0]
    assert (model["id"], model["max_model_len"]) == ("policy", 128)


async def test_probes_and_prometheus_need_no_token(cluster: Cluster, http: aiohttp.ClientSession) -> None:
    async with aiohttp.request("GET", f"{cluster.url}/healthz") as answer:
        assert answer.status == 503
    await cluster.add("a", fine)
    async with http.post(CHAT, json={}):
        pass
    async with aiohttp.request("GET", f"{cluster.url}/healthz") as answer:
        assert answer.status == 200
    async with aiohttp.request("GET", f"{cluster.url}/metrics") as answer:
        page = await answer.text()
    assert 'seatrial_pool_engines{state="Ready"} 1.0' in page
    assert 'seatrial_pool_requests_total{code="200",route="chat_completions"} 1.0' in page
    assert 'seatrial_tokens_total{kind="prompt"} 6.0' in page
    assert "seatrial_pool_kv_usage_ratio 0.5" in page
