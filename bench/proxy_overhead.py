"""What the token-exact proxy adds to a request, and what share of the engines' tokens a second it leaves.

    python -m bench.proxy_overhead

Requests: one agent, whose conversation grows by a tool call and its answer each turn, against an engine that answers
at once. The same token prompts are sent straight to the engine in between, so that both see the same machine.

Sessions: 64 agents side by side through one proxy, against the gateway and an engine that keeps a real one's pace
(`paced_engine`). The share is the time that the engine took for the tokens, of the time that the agents waited for
them; the same agents straight at the gateway for comparison.

Engine, gateway, proxy and agents are processes of their own.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bench.gateway_overhead import cpu_seconds
from bench.paced_engine import NUM_TURNS, TOKENS_A_SECOND, paced_engine
from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.spec.harness import HarnessLimits, Sampling
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.generation import EngineAddress, Generation, GenerationRequest
from seatrial_rollout.engine.wire import encode
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.proxy.agent_session import AgentSession, Terms
from seatrial_rollout.tito.proxy.server import Proxy
from seatrial_rollout.tito.session import Session
from seatrial_rollout.tito.template import ChatTemplate
from tests.chat_models import FAMILIES, write_model
from tests.engine_server import tool_call

_MODULE = "bench.proxy_overhead"
_TOKEN = "bench"  # noqa: S105  of this bench
_CONTEXT = 1_000_000
_TURNS = 200
_SIZES = (2_000, 8_000, 32_000, 100_000)
"""Tokens of a conversation up to which requests are told together."""
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "filesystem_read_text_file",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
_ASKED = {"role": "user", "content": "Read the files and say what the lamp costs."}


def _policy(model: Path) -> Policy:
    return Policy(model, _CONTEXT, "hermes")


async def serve_engine(model: Path) -> None:
    """An engine that answers at once."""
    template = ChatTemplate.load(model)
    said = tool_call("filesystem_read_text_file", path="README.txt")
    ids = [*template.encode(said), min(template.stop_token_ids)]
    body = encode(Generation(ids, [-0.5] * len(ids), [1] * len(ids), "stop"))

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


async def serve_proxy(model: Path, engine: str, num_sessions: int) -> None:
    """The proxy, with a session under each number."""
    terms = Terms(HarnessLimits(), 10_000, Sampling())
    async with EngineClient([EngineAddress("bench", engine, _TOKEN)], timeout_seconds=600) as client, Proxy() as proxy:
        for number in range(num_sessions):
            proxy.open(str(number), AgentSession(_policy(model), client, terms))
        print(proxy.url, flush=True)
        await asyncio.Event().wait()


@contextmanager
def process(*arguments: str) -> Iterator[tuple[str, int]]:
    """A process of this bench; yields where it listens, and its number."""
    with subprocess.Popen([sys.executable, "-m", _MODULE, *arguments], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().strip(), running.pid
        finally:
            running.kill()


class Agent:
    """A client that sends its whole conversation each time, as agents do."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self._http = http
        self._url = f"{url}/v1/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._messages: list[dict[str, Any]] = [_ASKED]

    def request(self) -> bytes:
        """The next request."""
        return json.dumps({"model": "policy", "messages": self._messages, "tools": _TOOLS}).encode()

    async def send(self, body: bytes) -> dict[str, Any]:
        """The answer to a request."""
        async with self._http.post(self._url, data=body, headers=self._headers) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer

    def read(self, answer: dict[str, Any], result: str) -> bool:
        """Take a turn in and answer its call; False if it has none."""
        message = answer["choices"][0]["message"]
        self._messages.append(message)
        calls = message.get("tool_calls") or []
        self._messages += [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls]
        return bool(calls)


async def measure_requests(model: Path, engine: str, proxy: str, proxy_pid: int) -> None:
    """Print what the proxy adds, by the size of the conversation."""
    template = ChatTemplate.load(model)
    words = "the price of the lamp in the table of the files is written there "
    by_size: dict[int, list[tuple[float, float]]] = {size: [] for size in _SIZES}
    address = EngineAddress("bench", engine, _TOKEN)
    async with aiohttp.ClientSession() as http, EngineClient([address], timeout_seconds=60) as client:
        agent = Agent(http, proxy, "0")
        cpu = cpu_seconds(proxy_pid)
        stops = sorted(template.stop_token_ids)
        for turn in range(_TURNS):
            body = agent.request()
            started = SYSTEM_CLOCK.now()
            answer = await agent.send(body)
            proxied = SYSTEM_CLOCK.now() - started
            num_tokens = answer["usage"]["prompt_tokens"]
            request = GenerationRequest([7] * num_tokens, 1000, 1.0, stop_token_ids=stops)
            started = SYSTEM_CLOCK.now()
            await client.generate(request)
            direct = SYSTEM_CLOCK.now() - started
            by_size[next(size for size in _SIZES if num_tokens <= size)].append((proxied, direct))
            agent.read(answer, words * (1 + turn // 8))
        cpu = cpu_seconds(proxy_pid) - cpu
    print("| tokens up to | requests | straight, p50 ms | through the proxy, p50 ms | added, p50 ms |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    everything = [pair for pairs in by_size.values() for pair in pairs]
    for size, pairs in [*((str(size), pairs) for size, pairs in by_size.items()), ("all", everything)]:
        proxied_ms, direct_ms, added_ms = (
            1e3 * statistics.median(values)
            for values in ([p for p, _ in pairs], [d for _, d in pairs], [p - d for p, d in pairs])
        )
        print(f"| {size} | {len(pairs)} | {direct_ms:.2f} | {proxied_ms:.2f} | {added_ms:.2f} |", flush=True)
    print(f"CPU of the proxy: {1e3 * cpu / _TURNS:.2f} ms a request, its start not counted")


async def run_proxied(proxy: str, num_sessions: int) -> float:
    """Share of the engine's pace that is left through the proxy."""

    async def work(agent: Agent) -> tuple[int, float]:
        tokens, started = 0, SYSTEM_CLOCK.now()
        for _ in range(NUM_TURNS):
            answer = await agent.send(agent.request())
            tokens += answer["usage"]["completion_tokens"]
            if not agent.read(answer, "The lamp costs 7. " * 100):
                break
        return tokens, SYSTEM_CLOCK.now() - started

    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http, asyncio.TaskGroup() as tasks:
        agents = [Agent(http, proxy, str(number)) for number in range(num_sessions)]
        runs = [tasks.create_task(work(agent)) for agent in agents]
        await asyncio.wait(runs)
    return _share([run.result() for run in runs])


async def run_straight(model: Path, address: EngineAddress, num_sessions: int) -> float:
    """The same with native sessions, straight at the gateway."""

    async def work(client: EngineClient) -> tuple[int, float]:
        session = Session(_policy(model), client, Sampling(), HarnessLimits())
        tokens, started = 0, SYSTEM_CLOCK.now()
        session.start([_ASKED], _TOOLS)
        for _ in range(NUM_TURNS):
            turn = await session.turn()
            tokens += turn.span.stop - turn.span.start
            if not turn.parsed.calls:
                break
            session.observe([{"role": "tool", "tool_call_id": "call00000", "content": "The lamp costs 7. " * 100}])
        return tokens, SYSTEM_CLOCK.now() - started

    async with EngineClient([address], timeout_seconds=600) as client, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(work(client)) for _ in range(num_sessions)]
        await asyncio.wait(runs)
    return _share([run.result() for run in runs])


def _share(runs: list[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in runs) / TOKENS_A_SECOND / sum(seconds for _, seconds in runs)


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", nargs="*", help="for the processes that it starts itself")
    parser.add_argument("--sessions", type=int, default=64)
    arguments = parser.parse_args()
    match arguments.role:
        case ["engine", model]:
            asyncio.run(serve_engine(Path(model)))
            return
        case ["proxy", model, engine, num_sessions]:
            asyncio.run(serve_proxy(Path(model), engine, int(num_sessions)))
            return
        case _:
            pass
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(FAMILIES["hermes"], Path(folder, "model"))
        with process("engine", str(model)) as (engine, _), process("proxy", str(model), engine, "1") as (proxy, pid):
            asyncio.run(measure_requests(model, engine, proxy, pid))
        num = arguments.sessions
        with paced_engine(model, Path(folder)) as paced:
            straight = asyncio.run(run_straight(model, paced.address, num))
            with process("proxy", str(model), paced.address.url, str(num)) as (proxy, _):
                proxied = asyncio.run(run_proxied(proxy, num))
    print(f"\n{num} sessions: {proxied:.1%} of the engine's pace through the proxy, {straight:.1%} straight")


if __name__ == "__main__":
    main()
